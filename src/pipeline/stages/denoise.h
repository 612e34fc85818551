// The denoising loop of one rank: latents in, latents out. Every rank holds the whole latents and steps the solver
// alike; the transformer's tokens and the guidance branches are what is divided. A batch of videos goes through it
// together: the transformer's samples are the conditional ones of all videos, then the unconditional ones.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "device/stream.h"
#include "models/wan/transformer/transformer.h"
#include "parallel/layout.h"
#include "pipeline/inputs/conditions.h"
#include "pipeline/planning/plan.h"
#include "pipeline/ranks/partial_sum_ranks.h"
#include "pipeline/ranks/shard_balance.h"
#include "pipeline/ranks/shared_once.h"
#include "pipeline/records/run_record.h"
#include "pipeline/stages/model_weights.h"
#include "pipeline/stages/prompt_context.h"
#include "pipeline/stages/step_reuse.h"
#include "trace/timing.h"

namespace zoetrope::pipeline {

// The prompt's keys and values of one expert and the rows they are made from: the text's and, where there are some, an
// image's.
struct SharedContext {
  Tensor rows, image_rows;
  std::unique_ptr<wan::TextContext> context;
};

// Of one run, for any rank's thread.
class SharedContexts {
 public:
  SharedOnce<SharedContext>& of(int expert, int data_index, int tensor_index) {
    const std::lock_guard lock(mutex_);
    return contexts_[{expert, data_index, tensor_index}];
  }

 private:
  std::mutex mutex_;
  std::map<std::array<int, 3>, SharedOnce<SharedContext>> contexts_;
};

// Is shown what the transformer computes, as a probe is (models/wan/transformer/transformer.h), with the step, counted
// from 0; what it makes of a prompt, with the number of the expert as prompt_of() gives it. And what surrounds that:
// with a prompt "text" [B, L, D], "lengths" [B] I64 where its padding is masked, "image", "control", "control_scales",
// "pose", "given_frames", "face"; in a step "work" I32, a sampling::StepWork, "shard_weights" I32 where they are not
// even, "input" of each video before the transformer, and behind it "velocity" after guidance and "latents" after the
// step, which it may change.
using Observer = std::function<void(int64_t step, std::string_view name, const TensorView& value)>;
constexpr int64_t prompt_of(int expert) { return -1 - expert; }

// What the transformer's blocks do in a step, per sample, the conditional one first. `keeps_residual`: for later steps.
std::vector<wan::Blocks> blocks_of_step(sampling::StepWork work, bool keeps_residual, int64_t samples);

class Denoiser {
 public:
  struct Setup {
    const ModelFolder& model;
    const RunPlan& plan;
    const parallel::ParallelLayout& layout;  // with the shard weights of the first step
    const attention::Strategy& strategy;     // of the kernel; its layout does not matter
    const PromptEmbeddings& prompts;         // of every sample
    const Conditions& conditions;
    bool mask_padding_tokens;
    ExpertWeights& weights;
    SharedContexts& contexts;
    bool check_finite = true;                 // of every step
    std::optional<double> step_timeout = {};  // of waits in a step, once its expert has made one; unset: as others
    // Shard weights follow what is measured. Rank 0's `pricing`; without one they stay.
    bool balances_shards = false;
    std::optional<ShardPricing> pricing = {};
    Observer observer = {};
  };
  // Collective over `world`. Plans attention and books its memory.
  Denoiser(const Setup& setup, comm::Communicator& world, Stream& stream, trace::Timing& timing);

  // Collective. Reads the weights of the first step's expert now instead of then; throws Error when `cancelled` says
  // so. `done`: steps that another run has done.
  void load_first_expert(int64_t done, const std::function<bool()>& cancelled);

  // A step that has ended, counted from 0.
  struct StepDone {
    int64_t step;
    double timestep, noise;        // before and after it: the latents now have `noise`, 0 after the last
    TensorView velocity, latents;  // latents may be changed, on every rank alike
    double seconds;
  };
  struct Hooks {
    std::function<bool()> cancelled;
    std::function<void(int64_t done, int64_t total)> layer;  // of a step
    std::function<void(const StepDone&)> step;
  };
  // latents [videos, C, T, h, w] F32, noise on entry, the final latents after. With check_finite an Error, on all ranks
  // alike, for the first value, step and rank that is NaN or infinite.
  // `from`: the state of another run after a step, which gave `latents`; the same on every rank. Null: from noise.
  void run(const TensorView& latents, const Hooks& hooks, const DenoiseState* from = nullptr);
  // Between two steps: in Hooks::step. On rank 0, which decides what a step cache does.
  DenoiseState state() const;

  attention::Counters attention_counters() const;                                         // of this rank, all steps
  std::vector<int> shard_weights() const { return layout_.of_sequence().shard_weights; }  // of the last step
  // Of the expert that worked last. Whoever holds them spares the next Denoiser the reading.
  std::shared_ptr<const wan::TransformerWeights> weights() const { return expert_weights_; }
  std::optional<StepCacheReport> step_cache_report() const { return reuse_.report(); }

 private:
  const char* branches_text() const;  // those of this rank, for the trace
  int64_t samples() const;            // of all ranks: two of each video with guidance
  int64_t local_samples() const;      // this rank's batch
  void plan_timesteps();
  void load_expert(int expert, const std::function<bool()>& cancelled);
  void prepare_expert(int expert);
  void observe_prompt(int expert) const;
  void plan_attention();
  void prepare_transformer();  // for the planned attention
  // Collective, between steps. The next step has to compute in full: what steps of a cache left behind is lost.
  void change_shards(const std::vector<int>& weights);
  // Collective, after a step in full, whose blocks took `seconds` and of them `waited`: what is to change before the
  // next one in full.
  void balance_shards(double seconds, double waited);
  double waited_seconds() const;  // for ranks and for weights in the forward pass, so far
  void restore(const DenoiseState& from, size_t size);
  // Computes the residual that a step reuses, which another run had: its last full step once more.
  void compute_full_step_again(const Probe& probe);
  void begin_part(const std::string& part);  // for messages about this rank
  void set_animation(int expert, const std::function<bool()>& cancelled);
  sampling::StepDecision decide(int64_t step, double timestep, const TensorView& latents);
  void velocity(const TensorView& latents, double timestep, const sampling::StepDecision& decision, const Probe& probe);
  TensorView input_of(const TensorView& latents);  // of this rank's samples
  void gather(int64_t local);                      // of the rank's first `local` samples
  [[noreturn]] void fail_not_finite(const TensorView& input, std::span<const wan::Blocks> blocks, const Probe& probe);

  Setup setup_;
  parallel::ParallelLayout layout_;
  Stream& stream_;
  trace::Timing& timing_;
  comm::Communicator& world_;
  // The ranks that compute one sequence together: this one alone where sequences stay whole; and those of its place in
  // the other parts of the data; and those that share its layers.
  std::unique_ptr<comm::Communicator> context_, data_, tensor_;
  PartialSumRanks sum_;  // over tensor_
  std::unique_ptr<attention::ContextAttention> attention_;
  attention::Counters attention_before_;   // of those planned before it
  std::unique_ptr<ShardBalance> balance_;  // of rank 0, where shards follow what is measured
  bool balances_ = false;                  // on every rank
  std::optional<std::vector<int>> next_weights_;
  StepReuse reuse_;
  const std::unique_ptr<sampling::Solver> solver_;
  const DenoiseState* missing_residual_ = nullptr;  // of another run: its residual is not here yet

  int expert_ = -1;
  std::string step_;  // "step 2 of 50"
  std::shared_ptr<const wan::TransformerWeights> expert_weights_;
  std::unique_ptr<wan::Transformer> transformer_;
  std::shared_ptr<SharedContext> text_;

  Tensor face_;  // of Animate: tokens of the face video

  StepInput input_;
  std::vector<float> timesteps_;     // of a forward
  std::vector<int32_t> token_time_;  // [samples here, N]: which of them a token has; empty: its sample's
  Tensor batch_input_;               // [local samples, C', T, h, w] F32; empty with one video, whose input all share
  Tensor local_;                     // [local samples, S_local, V] model dtype
  Tensor gathered_;                  // [samples, N, V]
  Tensor branch_;                    // [samples, C, T, h, w] F32
  Tensor velocity_;                  // [videos, C, T, h, w] F32, after guidance
};

}  // namespace zoetrope::pipeline
