// A step cache in the denoising loop of one rank: measures what its decider needs, broadcasts what rank 0
// decided, so that none diverges, and keeps count. What a reused step takes from an earlier one is kept where it is
// made: the residual in the transformer, the velocity in the loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "device/stream.h"
#include "models/sampling/frequency.h"
#include "models/sampling/step_cache.h"
#include "pipeline/planning/plan.h"
#include "pipeline/records/run_record.h"

namespace zoetrope::pipeline {

class StepReuse {
 public:
  // Books what the cache of `plan` needs, nothing without one.
  StepReuse(const RunPlan& plan, comm::Communicator& world, Stream& stream);

  bool reuses(sampling::StepWork work) const { return cache_ != nullptr && cache_->reuse() == work; }
  bool keeps_residual() const { return reuses(sampling::StepWork::kReuseResidual); }
  bool branches_apart() const { return reuses(sampling::StepWork::kConditionalOnly); }

  // Collective. `latents` as the step finds them; `embed` gives the step's time embedding, or its projection, as the
  // distance says. Only rank 0 asks for it.
  using EmbedTime = std::function<TensorView(sampling::StepDistance)>;
  sampling::StepDecision decide(int64_t step, double timestep, const TensorView& latents, const EmbedTime& embed);

  // The unconditional branch of a step that computes the conditional one only. First, while `branches` [2, C, T, h, w]
  // F32 still are the last of each, the conditional one of the step before: out [1, C, T, h, w] is their difference,
  // frequencies weighed. Then that is added to the new conditional branch, rounded to `dtype`.
  void weigh_difference(Stream& stream, const TensorView& branches, const sampling::StepDecision& decision,
                        const TensorView& out);
  static void add_conditional(Stream& stream, const TensorView& conditional, DType dtype, const TensorView& out);

  // Whether this step also computes what it would be with the residual of the last full step: first that, which is kept
  // here, then the step. Both guided velocities are [V, C, T, h, w] F32.
  bool measures_reuse(int64_t step, const sampling::StepDecision& decision) const;
  void keep_reused(const TensorView& velocity);
  void measure_reuse(const TensorView& velocity);

  // After each step. `apart`: seconds of it that the cache alone makes a full step take.
  void count(int64_t step, const sampling::StepDecision& decision, double seconds, double apart = 0);
  std::optional<StepCacheReport> report() const;  // none without a cache
  // Fills what a state says of the cache, and goes on from there: rank 0's, which is then given to every rank.
  void save(DenoiseState& state) const;
  void restore(const DenoiseState& state);

 private:
  double moved(const TensorView& latents, const EmbedTime& embed);

  comm::Communicator& world_;
  const double train_timesteps_;
  const sampling::StepCount steps_;
  std::unique_ptr<sampling::StepCache> cache_;  // of rank 0; the others ask it for its kind only
  std::vector<double> embedding_;               // of the step before
  Tensor reference_;                            // [V, C, T, h, w] F32: the latents of the last full step, on rank 0
  int64_t full_step_ = -1;                      // that step
  Tensor reused_velocity_;                      // of keep_reused(), on rank 0
  double reuse_error_ = -1;                     // as StepDistance::kReuseError, on rank 0
  double largest_reuse_error_ = -1;             // of full steps after reused ones
  std::optional<sampling::FrequencyFilter> filter_;
  std::vector<std::vector<double>> scratch_;  // of each thread

  std::string pattern_;
  int64_t reused_ = 0;
  double full_seconds_ = 0, reused_seconds_ = 0;  // what the cache alone takes is of the latter
};

// Lines for people, with a line feed at the end.
std::string step_cache_text(const StepCacheReport& report);

}  // namespace zoetrope::pipeline
