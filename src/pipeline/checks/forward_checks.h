// Checks what the ranks of a run computed, value by value: against one rank and against the float64 model. Every stage
// is given what the run itself had before it, so errors do not add up, and the first value that leaves its bound is
// where the error was made.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "models/sampling/step_cache.h"
#include "models/wan/reference/forward_stages.h"
#include "parallel/layout.h"
#include "pipeline/checks/forward_record.h"
#include "pipeline/checks/rank_values.h"
#include "pipeline/checks/reference_weights.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/stages/denoise.h"

namespace zoetrope::pipeline {

// What a value is compared with. The weights of the run are compared with those of the float64 model.
enum class Against : uint8_t { kOneRank, kOtherRanks, kFloat64, kWeights };
inline constexpr size_t kAgainst = 4;

// A value and how far it is from what it should be.
struct CheckedValue {
  std::string tensor;  // "block.3.self_attention"
  int64_t step = 0;    // from 0; prompt_of(expert) of what is made of a prompt
  int64_t sample = 0;  // of all: the conditional one of each video, then the unconditional ones
  int rank = 0;        // the one that is furthest off
  size_t place = 0;    // of its stage in a forward
  Against against{};
  double relative_l2 = 0, max_abs = 0;
  double bound = 0;     // of relative_l2
  double of_bound = 0;  // the largest of its errors, as a part of the bound; above 1: outside
};

// A step that reuses what an earlier one computed.
struct ReusedStep {
  int64_t step = 0;
  double relative_l2 = 0;  // of its velocity to that of whole forwards of the same latents
};

class ForwardChecks {
 public:
  struct Setup {
    const ModelFolder& model;
    const RunPlan& plan;
    DType vae_dtype = DType::kF32;
    parallel::KVExchange kv_exchange = parallel::KVExchange::kAsComputed;
    attention::AttentionDtype attention_dtype = attention::AttentionDtype::kAsComputed;
    int threads = 1;  // of this process
  };
  ForwardChecks(const Setup& setup, int ranks);

  // ---- the run ----
  Observer of_rank(int rank);
  // Collective, after the run.
  void gather(comm::Communicator& world, const parallel::ParallelLayout& layout);

  // ---- then on rank 0 ----
  // For the same run on one rank and without a step cache, which gets the values of the ranks stage by stage and is
  // compared with them.
  Observer of_one_rank();
  // [F, H, W, 3] U8 of the ranks and of one rank, from the same latents.
  void compare_frames(const TensorView& of_ranks, const TensorView& of_one);
  struct Effort {
    int64_t rows = 0;    // tokens of each stage, spread over the ranks; 0: all
    double seconds = 0;  // after these no other stage begins, but at least one of each kind is checked
  };
  // Against the float64 model: one stage of each kind first, then what is not of a block, then blocks far from each
  // other. `reference`: files that the run's weights were made from, whose weights it then has; what the rounding of
  // the run's explains is added to the bound (reference_weights.h). Null: the run's own.
  void check_in_float64(const ModelFolder* reference, const Effort& effort,
                        const std::function<void(int64_t done, int64_t total)>& progress,
                        const std::function<bool()>& cancelled);

  // The largest error of each tensor in each kind of check.
  std::vector<CheckedValue> worst() const;
  // The first that is outside of its bound.
  const std::optional<CheckedValue>& first_outside() const { return first_outside_; }
  int64_t outside() const { return outside_; }
  int64_t checked(Against against) const { return checked_[static_cast<size_t>(against)]; }
  int64_t stages() const { return stages_in_float64_; }  // that float64 can check: one of a step and a sample each
  int64_t stages_checked() const { return items_in_float64_; }
  const std::vector<ReusedStep>& reused() const { return reused_; }
  // The first is the noise, then those after each step: F32 values in one row.
  std::vector<Tensor> latents() const;
  bool uses_expert(int expert) const;
  std::string place_text(const CheckedValue& value) const;  // "step 2 of 50, conditional, rank 1"
  double largest_bound() const;                             // of a stage's relative L2 error
  // Bytes that are kept of a run, about: the stream behind each of a block's stages, on the ranks and gathered, and a
  // step of one rank.
  static double kept_bytes(const ModelFolder& model, const RunPlan& plan);

 private:
  using Stage = wan::reference::Stage;
  using Rows = wan::reference::Rows;
  const wan::TransformerConfig& config() const { return setup_.model.experts.front().config; }  // sizes
  const ForwardRecord& first() const { return ranks_.front(); }
  int expert_of(int64_t step) const;
  const wan::TransformerConfig& config_of(int64_t step) const {  // with the expert's own int8_blocks
    return setup_.model.experts[static_cast<size_t>(expert_of(step))].config;
  }
  double bound(const Stage& stage, int64_t step) const;              // of its relative L2 error
  double bound_of_one_rank(const Stage& stage, int64_t step) const;  // likewise, to one rank's
  double kv_rounding(const Stage& stage) const;
  RankValues values() const;
  RankValues::Recorded recorded(const Stage& stage) const;
  bool has_clean_tokens() const;
  TensorView shared(int64_t step, const char* name, const Shape& shape) const;
  wan::reference::StageInputs inputs(int64_t step, int64_t sample) const;
  IndexRange tokens_of(const Stage& stage, int64_t step) const;
  sampling::StepWork work_of(int64_t step) const;
  bool is_expected(int64_t step, const Stage& stage, int64_t sample) const;
  void put_back(int64_t step, std::string_view name, int64_t row, const TensorView& value) const;
  void compare_stages(int64_t step);
  void compare_step(int64_t step);
  void compare_shared(int64_t step);
  void note(const CheckedValue& value);
  struct Item {
    int64_t step, sample;
    size_t place;
  };
  std::vector<Item> items() const;  // that float64 can check, in the order in which it does
  void note_missing(int64_t step, int64_t sample, size_t place, const std::vector<RankValues::Piece>& pieces);
  void check_item(ReferenceWeights& weights, const Item& item, int64_t rows);

  Setup setup_;
  parallel::ParallelLayout layout_;
  const std::vector<Stage> stages_;
  std::vector<float> timesteps_;
  std::vector<ForwardRecord> ranks_;
  ForwardRecord one_rank_;
  bool has_reused_ = false;
  std::map<std::pair<size_t, std::string>, CheckedValue> worst_;  // by kind of check and tensor
  std::optional<CheckedValue> first_outside_;
  int64_t outside_ = 0, checked_[kAgainst] = {}, stages_in_float64_ = 0, items_in_float64_ = 0;
  std::vector<ReusedStep> reused_;
};

}  // namespace zoetrope::pipeline
