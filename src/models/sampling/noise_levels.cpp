#include "models/sampling/noise_levels.h"

#include <cmath>

#include "base/error.h"

namespace zoetrope::sampling {
namespace {

// numpy.linspace(from, to, count)[index], rounding as it does: by a step, and the last exactly.
double linspace(double from, double to, int64_t count, int64_t index) {
  if (count == 1) return from;
  if (index == count - 1) return to;
  return static_cast<double>(index) * ((to - from) / static_cast<double>(count - 1)) + from;
}

template <typename T>
T shifted(double shift, T sigma) {
  return static_cast<T>(shift) * sigma / (T{1} + static_cast<T>(shift - 1.0) * sigma);
}

bool given(const SolverConfig& config) { return !config.sigmas.empty() || !config.timesteps.empty(); }

// Level `index` before the shift, in the arithmetic of T.
template <typename T>
T given_level(const SolverConfig& config, size_t index) {
  if (!config.sigmas.empty()) return static_cast<T>(config.sigmas[index]);
  return static_cast<T>(config.timesteps[index]) / static_cast<T>(config.num_train_timesteps);
}

double multistep_level(const SolverConfig& config, int64_t index) {
  if (given(config)) return given_level<double>(config, static_cast<size_t>(index));
  const int64_t n = config.steps;
  const double last = 1.0 / static_cast<double>(config.num_train_timesteps);
  // Today's DPMSolver++ still has the grid that UniPC no longer has.
  const bool from_one = config.kind == SolverKind::kUniPC && config.grid == SigmaGrid::kFromOne;
  return from_one ? linspace(1.0, last, n + 1, index) : 1.0 - linspace(1.0, last, n + 1, n - index);
}

void check_list(const std::vector<double>& levels, const char* key, double most) {
  for (size_t i = 0; i < levels.size(); ++i) {
    if (!(levels[i] > 0 && levels[i] <= most)) {
      fail("{}: value {} of {} is {}, but must be above 0 and at most {}{}", key, i + 1, levels.size(), levels[i], most,
           levels[i] == 0 && i + 1 == levels.size() ? "; leave the final 0 out, it is implied" : "");
    }
    if (i > 0 && !(levels[i] < levels[i - 1])) {
      fail("{}: value {} of {} is {} after {}, but the values must fall", key, i + 1, levels.size(), levels[i],
           levels[i - 1]);
    }
  }
}

}  // namespace

void check_given_levels(const SolverConfig& config) {
  if (!config.sigmas.empty() && !config.timesteps.empty()) {
    fail("sigmas and timesteps both say where denoising steps lie; give one of them");
  }
  check_list(config.sigmas, "sigmas", 1);
  check_list(config.timesteps, "timesteps", static_cast<double>(config.num_train_timesteps));
}

NoiseLevels multistep_levels(const SolverConfig& config) {
  const auto train = static_cast<double>(config.num_train_timesteps);
  constexpr double kNearOne = 1e-6;  // σ = 1 would make the log of the signal level infinite
  // The reference's DPMSolver++ has no such step: it takes no levels, and its own grid begins below 1.
  const bool avoids_one = config.kind == SolverKind::kUniPC || given(config);
  // Whole timesteps that a user gives come back as they are where nothing is shifted, although t/1000·1000 may be a
  // little less than t.
  const double nudge = config.timesteps.empty() ? 0.0 : 1e-9 * train;
  NoiseLevels levels;
  for (int64_t i = 0; i < config.steps; ++i) {
    double sigma = shifted(config.shift, multistep_level(config, i));
    if (i == 0 && avoids_one && std::abs(sigma - 1.0) < kNearOne) sigma -= kNearOne;
    levels.timesteps.push_back(static_cast<float>(std::trunc(sigma * train + nudge)));
    levels.sigmas.push_back(static_cast<float>(sigma));
  }
  levels.sigmas.push_back(0.0f);
  return levels;
}

NoiseLevels flow_match_euler_levels(const SolverConfig& config) {
  const auto train = static_cast<double>(config.num_train_timesteps);
  // The reference shifts its table in float32 when it builds it, takes both ends from there, and shifts again.
  const auto low = static_cast<double>(shifted(config.shift, 1.0f / static_cast<float>(config.num_train_timesteps)));
  NoiseLevels levels;
  for (int64_t i = 0; i < config.steps; ++i) {
    // Given levels are float32 from the start, the grid is float64.
    const float sigma =
        given(config)
            ? shifted(config.shift, given_level<float>(config, static_cast<size_t>(i)))
            : static_cast<float>(shifted(config.shift, linspace(train, low * train, config.steps, i) / train));
    levels.sigmas.push_back(sigma);
    levels.timesteps.push_back(sigma * static_cast<float>(train));
  }
  levels.sigmas.push_back(0.0f);
  return levels;
}

}  // namespace zoetrope::sampling
