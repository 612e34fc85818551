#include "pipeline/planning/run_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/words.h"
#include "pipeline/model_files/int8_calibration.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

// How the run differs from what was measured: "; 2 steps nearer to the video …", where errors are larger. Empty where
// it does not.
std::string unlike_measured_text(const ModelFolder& model, size_t expert, const RunPlan& plan) {
  double least = std::numeric_limits<double>::infinity();
  for (const Int8Errors::At& at : model.experts[expert].int8_errors->at) least = std::min(least, at.timestep);
  constexpr double kRounded = 0.5;
  const auto solver = sampling::Solver::create(plan.solver);
  const int64_t steps = std::ranges::count_if(solver->timesteps(), [&](double timestep) {
    return plan.expert_at(timestep) == static_cast<int>(expert) && timestep < least - kRounded;
  });
  std::string text;
  if (steps > 0) {
    const bool hands_over = expert + 1 < model.experts.size();
    text = fmt::format("; {} nearer to the video than was measured, with larger errors{}", counted(steps, "step"),
                       hands_over ? ": repeat `zoetrope int8` with this boundary_ratio" : "");
  }
  const double guidance = model.experts[expert].int8_errors->guidance;
  if (guidance != plan.guidance[expert]) text += fmt::format("; on latents {}", guidance_text(guidance));
  return text;
}

}  // namespace

std::string int8_words(const ModelFolder& model, const RunPlan& plan) {
  std::string text, last, attention;
  if (model.attention_int8_limit)
    attention = fmt::format("attention in int8 up to {:.3g} % a head", 100 * *model.attention_int8_limit);
  for (size_t i = 0; i < model.experts.size(); ++i) {
    const Expert& expert = model.experts[i];
    const auto& blocks = expert.config.int8_blocks;
    std::string one;
    if (!blocks.empty())
      one = fmt::format("{} of {} blocks multiply in int8", blocks.size(), expert.config.block_count());
    if (const std::optional<double> error = expert.int8_error(plan.guidance[i])) {
      std::string predicted = fmt::format("predicted {:.2g} % off bf16 per step", 100 * *error);
      if (!attention.empty() && !blocks.empty()) predicted += " with " + attention;
      predicted += unlike_measured_text(model, i, plan);
      one += blocks.empty() ? fmt::format("{} ({})", attention, predicted)
                            : fmt::format(" ({}; {})", block_ranges(blocks), predicted);
    }
    if (one != last) text += text.empty() ? one : after_comma(one);
    last = one;
  }
  return text;
}

std::string expert_words(const RunPlan& plan) {
  if (!plan.step_count.two_experts()) return {};
  return fmt::format(" ({} with high noise)", plan.step_count.first_expert * plan.segments.count);
}

std::string guidance_words(const GenerateOptions& options, const RunPlan& plan) {
  if (!plan.guided) return "off";
  std::string text = fmt::to_string(options.guidance_scale);
  if (plan.step_count.two_experts() && plan.guidance[1] != plan.guidance[0])
    text += fmt::format(", of low noise {}", plan.guidance[1]);
  return text;
}

std::string step_cache_words(const GenerateOptions& options) {
  if (!step_cache_reuse(options)) return {};
  std::string text = fmt::format("step cache {}", step_cache_name(options));
  if (options.cache_threshold) text += fmt::format(", threshold {:.2g}", *options.cache_threshold);
  return text;
}

}  // namespace zoetrope::pipeline
