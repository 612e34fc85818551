#include <cmath>

#include "models/sampling/step_cache.h"

namespace zoetrope::sampling {
namespace {

class SenCache final : public StepCache {
 public:
  SenCache(const StepCount& count, const SenCacheSettings& settings) : count_(count), settings_(settings) {}

  std::string name() const override { return "SenCache"; }
  StepWork reuse() const override { return StepWork::kReuseVelocity; }
  StepDistance distance() const override { return StepDistance::kLatents; }

  StepDecision decide(int64_t step, double time, double moved) override {
    if (step == 0 || step == count_.first_expert || retained(step)) return compute(time);
    // Distances to the last full step are added up: each step counts all earlier movement again, so the sum
    // grows faster than the distance.
    moved_ += moved + std::abs(time - time_);
    if (settings_.threshold > 0 && moved_ <= settings_.threshold && skipped_ < settings_.max_skips) {
      ++skipped_;
      return {reuse()};
    }
    return compute(time);
  }

  std::vector<double> state() const override { return {time_, moved_, static_cast<double>(skipped_)}; }
  void restore(const std::vector<double>& state) override {
    check_state(state, 3);
    time_ = state[0];
    moved_ = state[1];
    skipped_ = static_cast<int64_t>(state[2]);
  }

 private:
  StepDecision compute(double time) {
    time_ = time;
    moved_ = 0;
    skipped_ = 0;
    return {};
  }
  bool retained(int64_t step) const {
    const auto n = static_cast<double>(count_.steps);
    return step < static_cast<int64_t>(n * settings_.retention) ||
           step >= static_cast<int64_t>(n * (1.0 - settings_.tail));
  }

  const StepCount count_;
  const SenCacheSettings settings_;
  double time_ = 1;   // of the last full step
  double moved_ = 0;  // since then
  int64_t skipped_ = 0;
};

}  // namespace

std::unique_ptr<StepCache> make_sen_cache(const StepCount& count, const SenCacheSettings& settings) {
  return std::make_unique<SenCache>(count, settings);
}

}  // namespace zoetrope::sampling
