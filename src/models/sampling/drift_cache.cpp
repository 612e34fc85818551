#include "models/sampling/step_cache.h"

namespace zoetrope::sampling {
namespace {

class DriftCache final : public StepCache {
 public:
  DriftCache(const StepCount& count, const DriftCacheSettings& settings) : count_(count), settings_(settings) {}

  std::string name() const override { return "Drift cache"; }
  StepWork reuse() const override { return StepWork::kReuseResidual; }
  StepDistance distance() const override {
    return settings_.threshold > 0 && settings_.max_skips > 0 ? StepDistance::kReuseError : StepDistance::kNone;
  }

  StepDecision decide(int64_t step, double time, double moved) override {
    if (step == 0 || step == count_.first_expert) {  // the other expert's residual means nothing to this one
      rate_ = kUnknown;
      return compute(time, time);
    }
    if (skipped_ == 0) rate_ = moved >= 0 && before_ > time_ ? moved / (before_ - time_) : kUnknown;
    const bool last = step + 1 == count_.first_expert || step + 1 == count_.steps;
    if (distance() != StepDistance::kNone && rate_ >= 0 && !last && skipped_ < settings_.max_skips &&
        rate_ * (time_ - time) <= settings_.threshold) {
      ++skipped_;
      return {reuse()};
    }
    return compute(time, time_);
  }

  std::vector<double> state() const override { return {rate_, before_, time_, static_cast<double>(skipped_)}; }
  void restore(const std::vector<double>& state) override {
    check_state(state, 4);
    rate_ = state[0];
    before_ = state[1];
    time_ = state[2];
    skipped_ = static_cast<int64_t>(state[3]);
  }

 private:
  static constexpr double kUnknown = -1;

  StepDecision compute(double time, double before) {
    before_ = before;
    time_ = time;
    skipped_ = 0;
    return {};
  }

  const StepCount count_;
  const DriftCacheSettings settings_;
  double rate_ = kUnknown;  // error by time
  double before_ = 1;       // of the last full step but one
  double time_ = 1;         // of the last full step
  int64_t skipped_ = 0;     // since then
};

}  // namespace

std::unique_ptr<StepCache> make_drift_cache(const StepCount& count, const DriftCacheSettings& settings) {
  return std::make_unique<DriftCache>(count, settings);
}

}  // namespace zoetrope::sampling
