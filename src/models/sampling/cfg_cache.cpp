#include "models/sampling/step_cache.h"

namespace zoetrope::sampling {
namespace {

class CfgCache final : public StepCache {
 public:
  CfgCache(const StepCount& count, const CfgCacheSettings& settings)
      : count_(count), settings_(settings), begin_(count.steps / kFirstShare), end_(last_step()) {}

  std::string name() const override { return "CFG cache"; }
  StepWork reuse() const override { return StepWork::kConditionalOnly; }

  StepDecision decide(int64_t step, double, double) override {
    const int64_t turn = turning_step();
    const bool late = step >= turn;
    // With two experts only the low-noise one is cached, after its first full step.
    const int64_t first_full = count_.two_experts() ? count_.first_expert : 0;
    const bool cached = step > first_full && step >= begin_ && step < end_ && (step - begin_) % settings_.interval != 0;
    if (!cached) return {};
    const double boosted = 1.0 + settings_.boost;
    return {reuse(), late ? 1.0 : boosted, late ? boosted : 1.0};
  }

 private:
  static constexpr int64_t kFirstShare = 3;  // the first third is full

  int64_t last_step() const {
    constexpr int64_t kLarge = 720;  // pixels
    constexpr double kLargeShare = 0.9;
    if (settings_.height >= kLarge) return static_cast<int64_t>(static_cast<double>(count_.steps) * kLargeShare);
    return count_.steps - (count_.two_experts() ? 1 : 2);
  }
  // The step from which the high frequencies get more weight.
  int64_t turning_step() const { return count_.two_experts() ? count_.first_expert : count_.steps / 2; }

  const StepCount count_;
  const CfgCacheSettings settings_;
  const int64_t begin_, end_;
};

}  // namespace

std::unique_ptr<StepCache> make_cfg_cache(const StepCount& count, const CfgCacheSettings& settings) {
  return std::make_unique<CfgCache>(count, settings);
}

}  // namespace zoetrope::sampling
