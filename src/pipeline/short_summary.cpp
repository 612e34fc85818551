#include "pipeline/short_summary.h"

#include <fmt/format.h>

#include "base/words.h"
#include "pipeline/predicted_report.h"
#include "pipeline/stages/phases.h"
#include "planner/bytes.h"

namespace zoetrope::pipeline {

std::string short_summary(const trace::Timing& timing, int64_t steps, const Video& result) {
  const double whole = phases::seconds_of(timing, {phases::kLoad, phases::kPrepare, phases::kInference});
  const double denoise = timing.seconds(phases::kDenoise);
  std::string text =
      fmt::format("Time {}: load {}, ", duration_text(whole), duration_text(timing.seconds(phases::kLoad)));
  for (const phases::Path part : phases::kConditionings)
    if (const double seconds = timing.seconds(part); seconds > 0)
      text += fmt::format("{} {}, ", phases::name_of(part), duration_text(seconds));
  if (steps > 0) {
    text += fmt::format("denoise {} ({} of {})", duration_text(denoise), counted(steps, "step"),
                        duration_text(denoise / static_cast<double>(steps)));
  } else {
    text += "denoised before";
  }
  if (const double decode = timing.seconds(phases::kDecode); decode > 0)
    text += fmt::format(", VAE decode {}", duration_text(decode));
  text += '\n';
  if (!result.memory.empty()) {
    const ComponentMemory& most = result.memory.back();
    text += fmt::format("Memory {} at most, {} planned\n", planner::Bytes(most.peak_bytes).text(),
                        planner::Bytes(most.planned_bytes).text());
  }
  if (const std::string deviation = largest_deviation(result.predicted); !deviation.empty())
    text += fmt::format("Prediction: largest deviation {}\n", deviation);
  return text;
}

std::string kv_rounding_text(const Video& result, parallel::KVExchange exchange) {
  if (!result.kv_rounding) return "";
  constexpr double kPercent = 100;
  return fmt::format("Exchange of keys and values in {}: off by {:.2g} % (keys) and {:.2g} % (values) at most\n",
                     kv_exchange_name(exchange), kPercent * result.kv_rounding->keys,
                     kPercent * result.kv_rounding->values);
}

std::string int8_heads_text(const attention::Counters& counters) {
  const int64_t heads = counters.heads_int8 + counters.heads_as_computed;
  if (heads == 0) return "";
  constexpr double kPercent = 100;
  return fmt::format("Attention in int8: {:.3g} % of heads, off by {:.2g} % at most in samples\n",
                     kPercent * static_cast<double>(counters.heads_int8) / static_cast<double>(heads),
                     kPercent * counters.int8_error);
}

}  // namespace zoetrope::pipeline
