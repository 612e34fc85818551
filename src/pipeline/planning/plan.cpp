#include "pipeline/planning/plan.h"

#include <algorithm>
#include <tuple>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/print.h"
#include "base/words.h"
#include "kernels/conv/frame_conv.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/planning/step_cache_settings.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/step_cache_options.h"
#include "text/prompt.h"

namespace zoetrope::pipeline {
namespace {

// The latent sizes, refused where the transformer's positions do not reach.
Shape checked_latent(const GenerateOptions& o, const ModelFolder& model, int64_t references, int64_t video_frames) {
  const int64_t spatial = model.vae_config.scale_factor_spatial;
  const auto& config = model.experts[0].config;
  for (const auto& [key, value, patch] :
       {std::tuple{"height", o.height, config.patch_size[1]}, std::tuple{"width", o.width, config.patch_size[2]}}) {
    const int64_t unit = spatial * patch;
    if (value % unit != 0) {
      const int64_t below = value / unit * unit;
      fail("{}={}: this model makes multiples of {}; the nearest are {}{}", key, value, unit,
           below > 0 ? fmt::format("{} and ", below) : "", below + unit);
    }
    if (value / unit > config.rope_max_seq_len) {
      fail("{}={}: this model has positions for {} at most", key, value, config.rope_max_seq_len * unit);
    }
  }
  const int64_t frames = model.vae_config.latent_frames(video_frames);
  const int64_t made = model.vae_config.video_frames(frames);
  if (made != video_frames) {
    const int64_t next = model.vae_config.video_frames(frames + 1);
    fail("num_frames={}: this model makes {} or {} frames, not a number between", o.num_frames, made, next);
  }
  if ((frames + references) / config.patch_size[0] > config.rope_max_seq_len) {
    const int64_t most = model.vae_config.video_frames(config.rope_max_seq_len * config.patch_size[0] - references);
    fail("{}={}: this model has positions for {} frames at most{}",
         config.animate() ? "segment_frame_length" : "num_frames", video_frames, most,
         references > 0 ? fmt::format(" with {}", counted(references, "reference image")) : "");
  }
  return {frames + references, o.height / spatial, o.width / spatial};
}

void note_segments(const GenerateOptions& o, RunPlan& plan) {
  if (plan.segments.frames != o.segment_frame_length) {
    plan.notes.push_back(fmt::format("segment_frame_length={} becomes {}, of the form 4k + 1", o.segment_frame_length,
                                     plan.segments.frames));
  }
  if (plan.segments.count > 1) {
    plan.notes.push_back(
        fmt::format("{} frames in {} segments of {}, each of which begins with the last {} of the "
                    "segment before",
                    o.num_frames, plan.segments.count, plan.segments.frames, plan.segments.shared));
  }
}

// Notes what the text encoder does not get to see of the prompts.
void tokenize_prompts(const std::vector<GenerateOptions>& videos, const ModelFolder& model, RunPlan& plan) {
  for (const auto& [key, field] : {std::pair("prompt", &GenerateOptions::prompt),
                                   std::pair("negative_prompt", &GenerateOptions::negative_prompt)}) {
    for (const GenerateOptions& o : videos) {
      const std::string& prompt = o.*field;
      const bool encoded = &prompt == &o.prompt || plan.guided;
      const std::string clean = text::clean_prompt(prompt);
      plan.prompt_ids.push_back(model.tokenizer.encode(clean, o.max_sequence_length));
      if (encoded && !o.prompt.empty() && plan.prompt_ids.back().empty()) {
        fail("{}: makes no tokens of the prompt '{}'; it must close prompts with </s>", model.tokenizer_folder.string(),
             prompt);
      }
      const std::string_view lost = model.tokenizer.cut_off(clean, o.max_sequence_length);
      if (!encoded || lost.empty()) continue;
      std::string note = fmt::format("{} has more than max_sequence_length={} tokens and is cut before '{}'", key,
                                     o.max_sequence_length, printable(lost));
      if (std::find(plan.notes.begin(), plan.notes.end(), note) == plan.notes.end())
        plan.notes.push_back(std::move(note));
    }
  }
}

// Whether a step of a batch may reuse what an earlier one computed is one decision for all its videos.
void check_cache_of_batch(const GenerateOptions& o, const RunPlan& plan) {
  const std::optional<sampling::StepWork> reuse = step_cache_reuse(o);
  if (plan.videos == 1 || !reuse || reuse == sampling::StepWork::kReuseResidual) return;
  fail(
      "batch_size={}: the cache that is set works on one video at a time; use batch_size=1, or cache=mag, tea or drift",
      plan.videos);
}

sampling::SolverConfig solver_config(const GenerateOptions& o, const ModelFolder& model, RunPlan& plan) {
  sampling::SolverConfig config;
  const sampling::SolverKind stored = sampling::parse_solver_kind(model.scheduler.class_name);
  config.kind = o.scheduler.value_or(stored);
  if (config.kind != stored) {
    plan.notes.push_back(fmt::format("scheduler {} instead of {}, which the checkpoint names",
                                     sampling::solver_name(config.kind), model.scheduler.class_name));
  }
  config.grid = o.sigma_grid;
  if (o.sigma_grid != GenerateOptions().sigma_grid &&
      (config.kind != sampling::SolverKind::kUniPC || !o.sigmas.empty() || !o.timesteps.empty())) {
    plan.notes.push_back("sigma_grid changes nothing: UniPC alone has two, where neither sigmas nor timesteps are set");
  }
  config.steps = o.num_inference_steps;
  config.sigmas = o.sigmas;
  config.timesteps = o.timesteps;
  config.num_train_timesteps = model.scheduler.num_train_timesteps;
  config.solver_order = static_cast<int>(model.scheduler.solver_order);
  config.disable_corrector = model.scheduler.disable_corrector;
  config.velocity = plan.dtype == DType::kBF16 ? sampling::VelocityDType::kBF16 : sampling::VelocityDType::kF32;
  config.shift = o.flow_shift.value_or(model.scheduler.flow_shift);
  if (o.flow_shift && *o.flow_shift != model.scheduler.flow_shift) {
    plan.notes.push_back(fmt::format("flow_shift {} instead of {}, which the checkpoint says", *o.flow_shift,
                                     model.scheduler.flow_shift));
  }
  if (o.scheduler == sampling::SolverKind::kFlowMatchEuler && config.shift != 1 && o.sigmas.empty() &&
      o.timesteps.empty()) {
    plan.notes.push_back(
        fmt::format("flow_match_euler applies flow_shift={} twice, as diffusers does; once, as ComfyUI "
                    "does, with the steps as sigmas, such as sigmas=1,0.75,0.5,0.25",
                    config.shift));
  }
  // Refuses now what it would refuse after the weights are read.
  const int64_t steps = sampling::Solver::create(config)->steps();
  if (steps != config.steps) {
    plan.notes.push_back(fmt::format("{} denoising steps, as {} says, instead of num_inference_steps={}", steps,
                                     o.sigmas.empty() ? "timesteps" : "sigmas", config.steps));
    config.steps = steps;
  }
  return config;
}

}  // namespace

std::vector<int64_t> RunPlan::token_counts() const {
  std::vector<int64_t> counts;
  for (const std::vector<int32_t>& ids : prompt_ids) counts.push_back(std::ssize(ids));
  return counts;
}

RunPlan plan_run(const GenerateOptions& options, const ModelFolder& model) {
  return plan_run(std::vector<GenerateOptions>(static_cast<size_t>(options.batch_size), options), model);
}

void refuse_keys_of_two_experts(const GenerateOptions& o) {
  if (o.guidance_scale_2) fail("guidance_scale_2: this model has one expert; leave it out");
  if (o.boundary_ratio) fail("boundary_ratio: this model has one expert; leave it out");
}

RunPlan plan_run(const std::vector<GenerateOptions>& videos, const ModelFolder& model) {
  const GenerateOptions& o = videos.front();
  RunPlan plan;
  plan.videos = std::ssize(videos);
  const auto& config = model.experts[0].config;
  if (o.layers) {
    plan.notes.push_back(fmt::format("layers={}: {} are computed, so the video is not the model's", *o.layers,
                                     model.experts[0].layers_text()));
  }
  // The character's picture goes before Animate's video as reference images do before VACE's.
  plan.references = config.animate() ? 1 : static_cast<int64_t>(reference_paths(o).size());
  plan.segments = segments_of(o, config.animate());
  if (config.animate()) note_segments(o, plan);
  plan.latent = checked_latent(o, model, plan.references, plan.segments.frames);
  plan.tokens = plan.latent[0] * plan.latent[1] * plan.latent[2] / config.patch_volume();
  plan.channels = config.out_channels;
  plan.dtype = activation_dtype(o);
  plan.guided = o.guidance_scale > 1;
  plan.guidance = guidance_of(o);
  plan.solver = solver_config(o, model, plan);
  plan.notes.insert(plan.notes.end(), o.notes_of_inputs.begin(), o.notes_of_inputs.end());
  if (!plan.guided && !o.negative_prompt.empty())
    plan.notes.push_back(
        fmt::format("negative_prompt: guides nothing, because guidance_scale={} turns guidance off", o.guidance_scale));
  if (model.experts.size() == 2) {
    if (!plan.guided && o.guidance_scale_2.value_or(1) > 1)
      plan.notes.push_back(
          fmt::format("guidance_scale_2={}: guides nothing, because guidance_scale={} turns guidance off",
                      *o.guidance_scale_2, o.guidance_scale));
    const double ratio = o.boundary_ratio.value_or(*model.pipeline.boundary_ratio);
    plan.boundary = ratio * static_cast<double>(model.scheduler.num_train_timesteps);
    if (ratio != *model.pipeline.boundary_ratio) {
      plan.notes.push_back(fmt::format("boundary_ratio {} instead of {}, which the checkpoint says", ratio,
                                       *model.pipeline.boundary_ratio));
    }
  } else {
    refuse_keys_of_two_experts(o);
  }
  attention::check_kv_exchange(o.strategy.kv_exchange_dtype, plan.dtype);
  attention::check_attention_dtype(o.strategy.attention_dtype, plan.dtype);
  if (o.vae_convolution == VaeConvolution::kWinograd) {
    if (const std::string why = kernels::winograd_refusal(); !why.empty())
      fail("vae_convolution=winograd: {}; set vae_convolution=auto", why);
  }
  for (std::string note : {attention::strategy_note(o.strategy), attention::tile_note(o.strategy.flash_block_sizes)})
    if (!note.empty()) plan.notes.push_back(std::move(note));
  plan.step_count = step_count(plan);
  plan.step_cache = step_cache_settings(o, model, plan);
  check_cache_of_batch(o, plan);
  tokenize_prompts(videos, model, plan);
  return plan;
}

}  // namespace zoetrope::pipeline
