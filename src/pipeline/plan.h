// What a run will do, derived from options and model once and checked: sizes, solver, guidance, how ranks are used.
// Pure data: `describe` prints it, the run follows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/generate.h"

#include "mesh/mesh.h"
#include "models/sampling/solver.h"
#include "models/sampling/step_cache.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

struct RunPlan {
  Shape latent;            // {T, h, w} in latent cells, those of reference images included
  int64_t references = 0;  // of T, the first so many: dropped at the end
  int64_t tokens = 0;
  int64_t channels = 0;  // of the latents; the transformer may take more
  DType dtype = DType::kBF16;
  bool guided = false;
  double guidance[2] = {1, 1};  // of each expert
  double boundary = 0;          // timestep from which on expert 0 works; one expert: 0
  sampling::SolverConfig solver;
  sampling::StepCount step_count;
  sampling::StepCacheSettings step_cache;
  std::vector<std::string> notes;  // where an option overrides the checkpoint

  int64_t steps() const { return solver.steps; }
  int expert_at(double timestep) const { return timestep >= boundary ? 0 : 1; }
};

// Throws Error for sizes that this model cannot make.
RunPlan plan_run(const GenerateOptions& options, const ModelFolder& model);

// How `ranks` ranks are used.
struct RankLayout {
  mesh::Degrees degrees;
  attention::Strategy strategy;
  bool sharded = true;  // false: every rank computes the whole sequence (flash_min_seq_length)
  int vae = 1;          // the first so many share the rows of a frame
};

// What options leave open, decided: auto_plan.h does. As it stands here it says what holds where nobody planned. Ranks
// send it to each other as its bytes.
struct RankChoice {
  int data = 1;     // where neither data_parallelism nor context_parallelism says it
  int ulysses = 0;  // 0: the largest divisor of the context degree that is ≤ the heads
  int head_chunks = 1;
  attention::Direction direction = attention::Direction::kForward;
  int vae = 0;  // 0: all, as far as there are rows
};

// The keys, and for what they leave open the choice.
attention::StrategyOptions filled_in(const attention::StrategyOptions& keys, const RankChoice& choice);

// Throws Error where guidance has fewer than `data` branches, or a cache needs them on the same ranks; names the key
// that made it so many.
void check_data_degree(const GenerateOptions& options, int data, int ranks);

// What the options say wins over `choice`. Throws Error for degrees that are not possible, with the legal ones.
RankLayout lay_out_ranks(const GenerateOptions& options, const RunPlan& plan, const ModelFolder& model, int ranks,
                         const RankChoice& choice = {});
// Where the sequence is not sharded every rank attends alone, whatever degrees were asked for.
attention::Strategy strategy_that_runs(const RankLayout& layout);
// As people read it, "data 1 x context 4 (Ulysses 2 x ring 2)", and after these what is not the default: the ring's
// direction, the softmax, the head chunks.
std::string layout_text(const RankLayout& layout);
std::string strategy_text(const attention::Strategy& strategy);  // its part in brackets
// The layout of one rank alone, whatever the options say.
RankLayout single_rank_layout();

}  // namespace zoetrope::pipeline
