// UniPC of order 2 at most, B(h) = e^h − 1 ("bh2"), on predictions of the clean sample.
// W. Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models", 2023.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/sampling/noise_levels.h"
#include "models/sampling/solver_kinds.h"

namespace zoetrope::sampling {
namespace {

// Scalars are float32, as the reference has them: λ of the first level is good to 1e-6 only, and results follow it.
class UniPC final : public Solver {
 public:
  explicit UniPC(const SolverConfig& config) : config_(config) { set_levels(multistep_levels(config)); }

  void step(int64_t index, std::span<const float> velocity, std::span<float> sample) override {
    ZT_CHECK(index == (index == 0 ? 0 : next_) && index < steps(), "step {} after {} of {}", index, next_, steps());
    ZT_CHECK(velocity.size() == sample.size());
    if (index == 0) restart(sample.size());
    ZT_CHECK(sample.size() == last_sample_.size());

    predict_clean(sigmas_[static_cast<size_t>(index)], config_.velocity, velocity, sample, fresh_);
    if (index > 0 && corrects(index)) correct(index, sample);
    std::swap(older_, newer_);
    std::swap(newer_, fresh_);
    order_ = static_cast<int>(std::min<int64_t>({config_.solver_order, steps() - index, steps_done_ + 1}));
    std::copy(sample.begin(), sample.end(), last_sample_.begin());
    predict_next(index, sample);
    steps_done_ = std::min(steps_done_ + 1, config_.solver_order);
    next_ = index + 1;
  }

  SolverState state() const override { return {next_, {order_, steps_done_}, {older_, newer_, last_sample_}}; }

  void restore(const SolverState& state, size_t size) override {
    check_state(state, size, 2, 3);
    for (const int64_t counter : state.counters)
      if (counter < 1 || counter > config_.solver_order) fail("the state of UniPC has order {}", counter);
    restart(size);
    next_ = state.next;
    order_ = static_cast<int>(state.counters[0]);
    steps_done_ = static_cast<int>(state.counters[1]);
    older_ = state.arrays[0];
    newer_ = state.arrays[1];
    last_sample_ = state.arrays[2];
  }

 private:
  // The common part of predictor and corrector, from level s to level t: x_t = ratio·x − scale·(m0 + …).
  struct Span {
    float h, ratio, scale;
    Span(float s, float t) : h(log_snr(t) - log_snr(s)), ratio(t / s), scale((1.0f - t) * std::expm1(-h)) {}
  };

  void restart(size_t size) {
    for (auto* buffer : {&older_, &newer_, &fresh_, &last_sample_}) buffer->assign(size, 0.0f);
    steps_done_ = 0;
    next_ = 0;
  }

  bool corrects(int64_t index) const {
    return std::find(config_.disable_corrector.begin(), config_.disable_corrector.end(), index - 1) ==
           config_.disable_corrector.end();
  }

  // Replaces the sample by the result of the last step with the clean sample that is predicted now.
  void correct(int64_t index, std::span<float> sample) const {
    const auto i = static_cast<size_t>(index);
    const Span span(sigmas_[i - 1], sigmas_[i]);
    const float* last = last_sample_.data();
    if (order_ == 1) {
      for (size_t k = 0; k < sample.size(); ++k) {
        const float m0 = newer_[k];
        sample[k] = span.ratio * last[k] - span.scale * m0 - span.scale * (0.5f * (fresh_[k] - m0));
      }
      return;
    }
    const float r = (log_snr(sigmas_[i - 2]) - log_snr(sigmas_[i - 1])) / span.h;
    // ρ1 + ρ2 = b1 and r·ρ1 + ρ2 = b2, where b come from the expansion of the exponential integrator.
    const float z = -span.h, e = std::expm1(z);
    const float k1 = e / z - 1.0f, k2 = k1 / z - 0.5f;
    const float b1 = k1 / e, b2 = 2.0f * k2 / e;
    const float rho1 = (b1 - b2) / (1.0f - r), rho2 = b1 - rho1;
    for (size_t k = 0; k < sample.size(); ++k) {
      const float m0 = newer_[k];
      const float d1 = (older_[k] - m0) / r;
      sample[k] = span.ratio * last[k] - span.scale * m0 - span.scale * (rho1 * d1 + rho2 * (fresh_[k] - m0));
    }
  }

  void predict_next(int64_t index, std::span<float> sample) const {
    const auto i = static_cast<size_t>(index);
    if (index + 1 == steps()) {  // σ = 0, h = ∞: nothing but the clean sample is left
      std::copy(newer_.begin(), newer_.end(), sample.begin());
      return;
    }
    const Span span(sigmas_[i], sigmas_[i + 1]);
    const float r = order_ == 1 ? 1.0f : (log_snr(sigmas_[i - 1]) - log_snr(sigmas_[i])) / span.h;
    for (size_t k = 0; k < sample.size(); ++k) {
      const float m0 = newer_[k];
      const float line = span.ratio * sample[k] - span.scale * m0;
      sample[k] = order_ == 1 ? line : line - span.scale * (0.5f * ((older_[k] - m0) / r));
    }
  }

  const SolverConfig config_;
  std::vector<float> older_, newer_;  // predictions of the clean sample at the two steps before
  std::vector<float> fresh_;          // at this step
  std::vector<float> last_sample_;    // the corrected sample of the step before
  int order_ = 1;                     // of the step before; the corrector uses it
  int steps_done_ = 0;                // counted up to the order
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Solver> make_uni_pc(const SolverConfig& config) { return std::make_unique<UniPC>(config); }

}  // namespace zoetrope::sampling
