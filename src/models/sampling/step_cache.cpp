#include "models/sampling/step_cache.h"

#include "base/error.h"

namespace zoetrope::sampling {
namespace {

struct Make {
  const StepCount& count;
  std::unique_ptr<StepCache> operator()(std::monostate) const { return nullptr; }
  std::unique_ptr<StepCache> operator()(const MagCacheSettings& s) const { return make_mag_cache(count, s); }
  std::unique_ptr<StepCache> operator()(const TeaCacheSettings& s) const { return make_tea_cache(count, s); }
  std::unique_ptr<StepCache> operator()(const SenCacheSettings& s) const { return make_sen_cache(count, s); }
  std::unique_ptr<StepCache> operator()(const CfgCacheSettings& s) const { return make_cfg_cache(count, s); }
  std::unique_ptr<StepCache> operator()(const DriftCacheSettings& s) const { return make_drift_cache(count, s); }
};

}  // namespace

void StepCache::check_state(const std::vector<double>& state, size_t size) {
  if (state.size() != size) fail("the state of a step cache has {} numbers instead of {}", state.size(), size);
}

void StepCache::restore(const std::vector<double>& state) { check_state(state, 0); }

std::unique_ptr<StepCache> make_step_cache(const StepCount& count, const StepCacheSettings& settings) {
  return std::visit(Make{count}, settings);
}

}  // namespace zoetrope::sampling
