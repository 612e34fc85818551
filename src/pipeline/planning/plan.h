// What a run will do, derived from options and model once and checked: sizes, solver, guidance. Pure data: `describe`
// prints it, the run follows it. How ranks are used is layout_question.h and rank_plan.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/sampling/solver.h"
#include "models/sampling/step_cache.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"

namespace zoetrope::pipeline {

struct RunPlan {
  Shape latent;            // {T, h, w} in latent cells of a segment, those of reference images included
  int64_t references = 0;  // how many of the first T are reference images: dropped at the end
  Segments segments;
  int64_t tokens = 0;
  int64_t channels = 0;  // of the latents; the transformer may take more
  DType dtype = DType::kBF16;
  bool guided = false;
  int64_t videos = 1;                       // of the batch: they are denoised together
  std::array<double, 2> guidance = {1, 1};  // guidance_of()
  double boundary = 0;                      // timestep from which on expert 0 works; one expert: 0
  sampling::SolverConfig solver;
  sampling::StepCount step_count;
  sampling::StepCacheSettings step_cache;
  std::vector<std::vector<int32_t>> prompt_ids;  // tokens of each video's prompt, then of the negative ones, with </s>
  std::vector<std::string> notes;                // where an option overrides the checkpoint

  Shape latents() const { return {1, channels, latent[0], latent[1], latent[2]}; }
  int64_t steps() const { return solver.steps; }  // of a segment
  int64_t total_steps() const { return solver.steps * segments.count; }
  std::vector<int64_t> token_counts() const;                     // of prompt_ids
  int64_t samples() const { return videos * (guided ? 2 : 1); }  // of the transformer
  int expert_at(double timestep) const { return timestep >= boundary ? 0 : 1; }
};

// Throws Error for a key that a model with one expert does not take.
void refuse_keys_of_two_experts(const GenerateOptions& options);

// Throws Error for sizes that this model cannot make.
RunPlan plan_run(const GenerateOptions& options, const ModelFolder& model);
// Of a batch of videos that differ in their prompts; batch_size says how many there are.
RunPlan plan_run(const std::vector<GenerateOptions>& videos, const ModelFolder& model);

}  // namespace zoetrope::pipeline
