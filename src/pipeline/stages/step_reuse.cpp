#include "pipeline/stages/step_reuse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/words.h"
#include "tensor/copy_of.h"
#include "tensor/half.h"
#include "tensor/relative_l2.h"

namespace zoetrope::pipeline {
namespace {

std::vector<double> doubles(const TensorView& values) {
  return {values.data<float>(), values.data<float>() + values.size()};
}

// mean |now − before| / mean |before|
double relative_l1(const std::vector<double>& now, const std::vector<double>& before) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    difference += std::abs(now[i] - before[i]);
    norm += std::abs(before[i]);
  }
  return norm > 0 ? difference / norm : 0;
}

double root_mean_square(const TensorView& a, const TensorView& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a.data<float>()[i]) - static_cast<double>(b.data<float>()[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

constexpr char kComputed = 'C', kReused = 'r';

}  // namespace

StepReuse::StepReuse(const RunPlan& plan, comm::Communicator& world, Stream& stream)
    : world_(world),
      train_timesteps_(static_cast<double>(plan.solver.num_train_timesteps)),
      steps_(plan.step_count),
      cache_(sampling::make_step_cache(plan.step_count, plan.step_cache)) {
  if (cache_ == nullptr) return;
  const Shape latents = {plan.videos, plan.channels, plan.latent[0], plan.latent[1], plan.latent[2]};
  if ((cache_->distance() == sampling::StepDistance::kLatents || keeps_residual()) && world.rank() == 0) {
    reference_ = Tensor(DType::kF32, latents);
  }
  if (cache_->distance() == sampling::StepDistance::kReuseError && world.rank() == 0)
    reused_velocity_ = Tensor(DType::kF32, latents);
  if (!branches_apart()) return;
  filter_.emplace(plan.latent[1], plan.latent[2]);
  scratch_.assign(static_cast<size_t>(stream.team().size()), std::vector<double>(filter_->scratch_size()));
}

double StepReuse::moved(const TensorView& latents, const EmbedTime& embed) {
  if (cache_->distance() == sampling::StepDistance::kNone) return 0;
  if (cache_->distance() == sampling::StepDistance::kReuseError) return reuse_error_;
  if (cache_->distance() == sampling::StepDistance::kLatents) return root_mean_square(latents, reference_);
  std::vector<double> now = doubles(embed(cache_->distance()));
  const double change = embedding_.empty() ? 0 : relative_l1(now, embedding_);
  embedding_ = std::move(now);
  return change;
}

sampling::StepDecision StepReuse::decide(int64_t step, double timestep, const TensorView& latents,
                                         const EmbedTime& embed) {
  sampling::StepDecision decision;
  if (cache_ == nullptr) return decision;
  if (world_.rank() == 0) {
    decision = cache_->decide(step, timestep / train_timesteps_, moved(latents, embed));
    if (reference_ && decision.work == sampling::StepWork::kFull) {
      std::memcpy(reference_.view().raw(), latents.raw(), latents.bytes());
    }
  }
  if (world_.size() > 1) world_.broadcast(0, &decision, sizeof decision, "step cache");
  return decision;
}

void StepReuse::weigh_difference(Stream& stream, const TensorView& branches, const sampling::StepDecision& decision,
                                 const TensorView& out) {
  ZT_CHECK(branches.contiguous() && out.contiguous() && branches.extent(0) == 2 && branches.size() == 2 * out.size());
  const int64_t plane = out.extent(3) * out.extent(4), planes = out.size() / plane;
  const float* conditional = branches.data<float>();
  const float* unconditional = conditional + out.size();
  stream.team().parallel_for(planes, 1, [&](IndexRange range, int thread) {
    const auto size = static_cast<size_t>(plane);
    for (int64_t p = range.begin; p < range.end; ++p) {
      const int64_t at = p * plane;
      filter_->weigh({conditional + at, size}, {unconditional + at, size}, decision.low, decision.high,
                     scratch_[static_cast<size_t>(thread)], {out.data<float>() + at, size});
    }
  });
}

void StepReuse::add_conditional(Stream& stream, const TensorView& conditional, DType dtype, const TensorView& out) {
  constexpr int64_t kGrain = 1 << 16;
  stream.team().parallel_for(out.size(), kGrain, [&](IndexRange range, int) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const float sum = conditional.data<float>()[i] + out.data<float>()[i];
      out.data<float>()[i] = dtype == DType::kBF16 ? to_float(to_bfloat16(sum)) : sum;
    }
  });
}

bool StepReuse::measures_reuse(int64_t step, const sampling::StepDecision& decision) const {
  if (cache_ == nullptr || cache_->distance() != sampling::StepDistance::kReuseError) return false;
  const bool other_expert = full_step_ < steps_.first_expert && step >= steps_.first_expert;
  return decision.work == sampling::StepWork::kFull && full_step_ >= 0 && !other_expert;
}

void StepReuse::keep_reused(const TensorView& velocity) {
  if (reused_velocity_) std::memcpy(reused_velocity_.view().raw(), velocity.raw(), velocity.bytes());
}

void StepReuse::measure_reuse(const TensorView& velocity) {
  if (!reused_velocity_) return;
  reuse_error_ = 0;
  for (int64_t video = 0; video < velocity.extent(0); ++video) {
    const auto of = [video](const TensorView& all) { return all.slice(0, video, video + 1); };
    reuse_error_ = std::max(reuse_error_, relative_l2(of(reused_velocity_), of(velocity)));
  }
  if (!std::isfinite(reuse_error_)) reuse_error_ = -1;  // where runs may go on with what is not finite
  if (pattern_.ends_with(kReused)) largest_reuse_error_ = std::max(largest_reuse_error_, reuse_error_);
}

void StepReuse::count(int64_t step, const sampling::StepDecision& decision, double seconds, double apart) {
  const bool full = decision.work == sampling::StepWork::kFull;
  if (full) full_step_ = step;
  pattern_ += full ? kComputed : kReused;
  reused_ += full ? 0 : 1;
  (full ? full_seconds_ : reused_seconds_) += seconds - apart;
  reused_seconds_ += apart;
}

std::optional<StepCacheReport> StepReuse::report() const {
  if (cache_ == nullptr) return std::nullopt;
  StepCacheReport report;
  report.name = cache_->name();
  report.pattern = pattern_;
  report.reused = reused_;
  const auto full = static_cast<double>(static_cast<int64_t>(pattern_.size()) - reused_);
  if (largest_reuse_error_ >= 0) report.reuse_error = largest_reuse_error_;
  if (full > 0) report.seconds_saved = static_cast<double>(reused_) * full_seconds_ / full - reused_seconds_;
  return report;
}

void StepReuse::save(DenoiseState& state) const {
  if (cache_ == nullptr) return;
  state.cache = cache_->state();
  state.embedding.assign(embedding_.begin(), embedding_.end());  // of float32 values
  state.reuse_error = reuse_error_;
  state.largest_reuse_error = largest_reuse_error_;
  state.pattern = pattern_;
  state.full_seconds = full_seconds_;
  state.reused_seconds = reused_seconds_;
  state.full_step = full_step_;
  if (reference_) state.full_latents = copy_of(reference_);
}

void StepReuse::restore(const DenoiseState& state) {
  if (cache_ == nullptr) return;
  cache_->restore(state.cache);
  embedding_.assign(state.embedding.begin(), state.embedding.end());
  reuse_error_ = state.reuse_error;
  largest_reuse_error_ = state.largest_reuse_error;
  pattern_ = state.pattern;
  reused_ = std::count(pattern_.begin(), pattern_.end(), kReused);
  full_seconds_ = state.full_seconds;
  reused_seconds_ = state.reused_seconds;
  full_step_ = state.full_step;
  if (!reference_) return;
  if (!state.full_latents || !(state.full_latents.shape() == reference_.shape()))
    fail("the state of a step cache lacks the latents of its last full step");
  std::memcpy(reference_.view().raw(), state.full_latents.view().raw(), reference_.view().bytes());
}

std::string step_cache_text(const StepCacheReport& report) {
  std::string text = fmt::format("Step cache: {} reused {} of {} steps ({}), {} saved", report.name, report.reused,
                                 report.pattern.size(), report.pattern, duration_text(report.seconds_saved));
  text += report.saving_measured ? " against a run without it\n" : " at the rate of the computed ones\n";
  if (report.velocity_rel_l2)
    text += fmt::format("Velocity of a step against no cache: relative L2 at most {:.3g}\n", *report.velocity_rel_l2);
  if (report.rel_l2) text += fmt::format("Latents against no cache: relative L2 {:.3g}\n", *report.rel_l2);
  if (report.reuse_error)
    text += fmt::format(
        "Velocity of steps after reused ones: with the same residual off by a relative L2 of {:.3g} at most\n",
        *report.reuse_error);
  return text;
}

}  // namespace zoetrope::pipeline
