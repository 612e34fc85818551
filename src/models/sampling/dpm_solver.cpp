// DPMSolver++ of order 2 at most, multistep, midpoint, on predictions of the clean sample ("2M").
// C. Lu et al., "DPM-Solver++: Fast Solver for Guided Sampling of Diffusion Probabilistic Models", 2022.
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/sampling/noise_levels.h"
#include "models/sampling/solver_kinds.h"

namespace zoetrope::sampling {
namespace {

// Scalars are float32, as the reference has them; e^−h − 1 is a difference there, not expm1.
class DpmSolver final : public Solver {
 public:
  explicit DpmSolver(const SolverConfig& config) : order_(config.solver_order), velocity_(config.velocity) {
    set_levels(multistep_levels(config));
  }

  void step(int64_t index, std::span<const float> velocity, std::span<float> sample) override {
    ZT_CHECK(index == (index == 0 ? 0 : next_) && index < steps(), "step {} after {} of {}", index, next_, steps());
    ZT_CHECK(velocity.size() == sample.size());
    if (index == 0) {
      newer_.assign(sample.size(), 0.0f);
      older_.assign(sample.size(), 0.0f);
    }
    ZT_CHECK(sample.size() == newer_.size());
    const auto i = static_cast<size_t>(index);
    std::swap(older_, newer_);
    predict_clean(sigmas_[i], velocity_, velocity, sample, newer_);
    next_ = index + 1;
    if (next_ == steps()) {  // σ = 0, h = ∞: nothing but the clean sample is left
      std::copy(newer_.begin(), newer_.end(), sample.begin());
      return;
    }
    const float h = log_snr(sigmas_[i + 1]) - log_snr(sigmas_[i]);
    const float ratio = sigmas_[i + 1] / sigmas_[i], scale = (1.0f - sigmas_[i + 1]) * (std::exp(-h) - 1.0f);
    if (index == 0 || order_ == 1) {
      for (size_t k = 0; k < sample.size(); ++k) sample[k] = ratio * sample[k] - scale * newer_[k];
      return;
    }
    const float r = (log_snr(sigmas_[i]) - log_snr(sigmas_[i - 1])) / h;
    for (size_t k = 0; k < sample.size(); ++k) {
      const float slope = 1.0f / r * (newer_[k] - older_[k]);
      sample[k] = ratio * sample[k] - scale * newer_[k] - 0.5f * scale * slope;
    }
  }

  SolverState state() const override { return {next_, {}, {newer_, older_}}; }

  void restore(const SolverState& state, size_t size) override {
    check_state(state, size, 0, 2);
    next_ = state.next;
    newer_ = state.arrays[0];
    older_ = state.arrays[1];
  }

 private:
  const int order_;
  const VelocityDType velocity_;
  std::vector<float> newer_, older_;  // predictions of the clean sample at this step and the one before
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Solver> make_dpm_solver(const SolverConfig& config) { return std::make_unique<DpmSolver>(config); }

}  // namespace zoetrope::sampling
