#include "base/error.h"
#include "models/sampling/step_cache.h"

namespace zoetrope::sampling {
namespace {

class TeaCache final : public StepCache {
 public:
  TeaCache(const StepCount& count, const TeaCacheSettings& settings) : count_(count), settings_(settings) {
    ZT_CHECK(!settings_.coefficients.empty());
  }

  std::string name() const override { return "TeaCache"; }
  StepWork reuse() const override { return StepWork::kReuseResidual; }
  StepDistance distance() const override {
    return settings_.retention_steps ? StepDistance::kTimeProjection : StepDistance::kTimeEmbedding;
  }

  // The embedding depends on the timestep alone, so both branches share one decision.
  StepDecision decide(int64_t step, double, double moved) override {
    // The other expert's residual and time embedding cannot be used for this one.
    const bool first = step == 0 || step == count_.first_expert;
    if (first || retained(step)) {
      change_ = 0;
      return {};
    }
    double change = 0;
    for (const double coefficient : settings_.coefficients) change = change * moved + coefficient;
    change_ += change;
    // A polynomial may be negative; at threshold 0 nothing is skipped all the same.
    if (settings_.threshold > 0 && change_ < settings_.threshold) return {reuse()};
    change_ = 0;
    return {};
  }

  std::vector<double> state() const override { return {change_}; }
  void restore(const std::vector<double>& state) override {
    check_state(state, 1);
    change_ = state[0];
  }

 private:
  bool retained(int64_t step) const {
    constexpr int64_t kRetentionSteps = 5, kFirst = 1, kLast = 1;
    if (settings_.retention_steps) return step < kRetentionSteps;
    return step < kFirst || step >= count_.steps - kLast;
  }

  const StepCount count_;
  const TeaCacheSettings settings_;
  double change_ = 0;  // since the last full step
};

}  // namespace

std::unique_ptr<StepCache> make_tea_cache(const StepCount& count, const TeaCacheSettings& settings) {
  return std::make_unique<TeaCache>(count, settings);
}

}  // namespace zoetrope::sampling
