#include <array>
#include <cmath>

#include "base/error.h"
#include "models/sampling/step_cache.h"

namespace zoetrope::sampling {
namespace {

enum Branch : size_t { kConditional, kUnconditional, kBranches };

class MagCache final : public StepCache {
 public:
  MagCache(const StepCount& count, const MagCacheSettings& settings)
      : count_(count), settings_(settings), ratios_(resample_ratios(settings.ratios, count.steps)) {}

  std::string name() const override { return "MagCache"; }
  StepWork reuse() const override { return StepWork::kReuseResidual; }

  StepDecision decide(int64_t step, double, double) override {
    if (step == 0 || step == count_.first_expert) {  // the other expert's residual means nothing to this one
      restart();
      has_residual_ = false;
    }
    if (retained(step) || !has_residual_) return compute();
    std::array<double, kBranches> ratio{}, error{};
    bool skips = skipped_ < settings_.max_skips;
    for (size_t branch = 0; branch < kBranches; ++branch) {
      ratio[branch] = ratio_[branch] * ratios_[static_cast<size_t>(step) * kBranches + branch];
      error[branch] = error_[branch] + std::abs(1.0 - ratio[branch]);
      skips = skips && error[branch] < settings_.threshold;
    }
    if (!skips) {
      restart();
      return compute();
    }
    ratio_ = ratio;
    error_ = error;
    ++skipped_;
    return {reuse()};
  }

  std::vector<double> state() const override {
    return {ratio_[0], ratio_[1], error_[0], error_[1], static_cast<double>(skipped_), has_residual_ ? 1.0 : 0.0};
  }
  void restore(const std::vector<double>& state) override {
    check_state(state, 6);
    ratio_ = {state[0], state[1]};
    error_ = {state[2], state[3]};
    skipped_ = static_cast<int64_t>(state[4]);
    has_residual_ = state[5] != 0;
  }

 private:
  // One decision for both branches: each must stay below the threshold.
  void restart() {
    ratio_.fill(1);
    error_.fill(0);
    skipped_ = 0;
  }
  StepDecision compute() {
    has_residual_ = true;
    return {};
  }
  bool retained(int64_t step) const {
    const bool first = step < count_.first_expert;
    const int64_t begin = first ? 0 : count_.first_expert, end = first ? count_.first_expert : count_.steps;
    return step - begin < static_cast<int64_t>(static_cast<double>(end - begin) * settings_.retention);
  }

  const StepCount count_;
  const MagCacheSettings settings_;
  const std::vector<double> ratios_;
  std::array<double, kBranches> ratio_{1, 1};  // of magnitudes, since the last full step
  std::array<double, kBranches> error_{0, 0};
  int64_t skipped_ = 0;
  bool has_residual_ = false;
};

// numpy.round: halves to even.
int64_t round_half_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

}  // namespace

std::vector<double> resample_ratios(const std::vector<double>& of, int64_t steps) {
  ZT_CHECK(!of.empty() && of.size() % kBranches == 0 && steps > 0, "{} ratios for {} steps", of.size(), steps);
  const auto count = static_cast<int64_t>(of.size() / kBranches);
  if (count == steps) return of;
  std::vector<double> ratios;
  for (int64_t i = 0; i < steps; ++i) {
    // numpy.linspace takes i times a step, and the last value exactly; of one step alone it is the last ratio.
    int64_t from = count - 1;
    if (i < steps - 1) {
      from =
          round_half_even(static_cast<double>(i) * (static_cast<double>(count - 1) / static_cast<double>(steps - 1)));
    }
    for (size_t branch = 0; branch < kBranches; ++branch) {
      ratios.push_back(of[static_cast<size_t>(from) * kBranches + branch]);
    }
  }
  return ratios;
}

std::unique_ptr<StepCache> make_mag_cache(const StepCount& count, const MagCacheSettings& settings) {
  return std::make_unique<MagCache>(count, settings);
}

}  // namespace zoetrope::sampling
