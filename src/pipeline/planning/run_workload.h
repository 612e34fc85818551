// A run as plain numbers for the planner: how much it holds and computes, and how many ranks its stages can use.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "models/wan/workload.h"
#include "parallel/layout.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/model_configs.h"
#include "pipeline/planning/plan.h"
#include "pipeline/settings/generate_options.h"
#include "planner/memory_model.h"
#include "planner/work.h"

namespace zoetrope::pipeline {

// What the memory of a run follows from. Configs alone: no file is needed, so `inspect` can ask too.
struct MemoryQuestion {
  GenerateOptions options;
  wan::ModelConfigs configs;
  parallel::ParallelLayout layout{};
  std::vector<int64_t> prompt_tokens{};  // where they are known; else the most that fit
  // Bytes of this process before the run; unset: of a program that does nothing else.
  std::optional<int64_t> resident{};
  int ranks_here = 1;  // that share a process
  // Processes of this host, which keep one copy of a transformer's weights where all of them stay in memory, as of its
  // file: of that each has a part. What a process measures of itself is all of it: 1.
  int sharers = 1;
  int64_t known_prompts = 0;  // bytes of the last run's embeddings, which keep_weights leaves in the process
  int64_t grid_frames = 0;    // bytes of frames that the process keeps for a grid
  int64_t of_others = 0;      // bytes allocated since `resident`, and not by the model: a caller's videos
  double share_of_first = 1;  // of the steps, those of the first of two experts
};

// Size, dtypes and threads that the question asks about.
wan::RunSize run_size(const MemoryQuestion& question);

// What the run holds in a layout with `ranks_here` ranks per process; the question's own do not matter.
std::function<planner::Workload(const parallel::ParallelLayout&, int ranks_here)> workload_by_layout(
    const MemoryQuestion& question);
planner::MemoryPlan memory_plan(const MemoryQuestion& question);
planner::Bytes peak_memory(const MemoryQuestion& question);  // of a process

// Of a model, what is in memory between two runs.
struct KeptWeights {
  bool experts = false, vae_decoder = false, vae_encoder = false;
};
// Bytes of it that a process has allocated, behind a run of this layout: where ranks are processes, a part of them.
// Files that are mapped are none of them.
planner::Bytes kept_bytes(const MemoryQuestion& question, const KeptWeights& kept);

// Bytes of the larger transformer's weights in memory: as the question asks, and the least that weight_memory can make
// it.
struct TransformerMemory {
  int64_t asked = 0, least = 0;
};
TransformerMemory transformer_memory(const MemoryQuestion& question);

// What the run computes in one step and around it.
planner::Work work_of(const MemoryQuestion& question);

// How many of `ranks` ranks decode: the first ones. Throws Error where the options ask for what cannot be.
int decoding_ranks(const GenerateOptions& options, const RunPlan& plan, const ModelFolder& model, int ranks);

// How many of `ranks` ranks share the text encoder's layers: one with deterministic=true, because sums over ranks round
// differently for every number of ranks.
int text_ranks(bool deterministic, int ranks);

}  // namespace zoetrope::pipeline
