#include "models/wan/solvers/solver.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::wan {

namespace {

// numpy.linspace(from, to, count)[index], rounding as it does: by a step, and the last exactly.
double linspace(double from, double to, int64_t count, int64_t index) {
  if (count == 1) return from;
  if (index == count - 1) return to;
  return static_cast<double>(index) * ((to - from) / static_cast<double>(count - 1)) + from;
}

template <typename T>
T shifted(T shift, T sigma) {
  return shift * sigma / (T{1} + (shift - T{1}) * sigma);
}

float round_bf16(float value) { return to_float(to_bfloat16(value)); }

// α − x with the signal level α = 1 − σ, as λ = ln α − ln σ: half the log of the signal-to-noise ratio.
float lambda(float sigma) { return std::log(1.0f - sigma) - std::log(sigma); }

// UniPC of order 2 at most, B(h) = e^h − 1 ("bh2"), on predictions of the clean sample.
// W. Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models", 2023.
// Scalars are float32, as the reference has them: λ of the first level is good to 1e-6 only, and results follow it.
class UniPC final : public Solver {
 public:
  explicit UniPC(const SolverConfig& config) : config_(config) {
    const int64_t n = config.steps;
    const auto train = static_cast<double>(config.num_train_timesteps);
    constexpr double kNearOne = 1e-6;  // σ = 1 would make λ infinite
    for (int64_t i = 0; i < n; ++i) {
      const double u = config.grid == SigmaGrid::kFromOne ? linspace(1.0, 1.0 / train, n + 1, i)
                                                          : 1.0 - linspace(1.0, 1.0 / train, n + 1, n - i);
      double sigma = shifted(config.shift, u);
      if (i == 0 && std::abs(sigma - 1.0) < kNearOne) sigma -= kNearOne;
      timesteps_.push_back(static_cast<float>(std::trunc(sigma * train)));
      sigmas_.push_back(static_cast<float>(sigma));
    }
    sigmas_.push_back(0.0f);
  }

  void step(int64_t index, std::span<const float> velocity, std::span<float> sample) override {
    ZT_CHECK(index == (index == 0 ? 0 : next_) && index < steps(), "step {} after {} of {}", index, next_, steps());
    ZT_CHECK(velocity.size() == sample.size());
    if (index == 0) restart(sample.size());
    ZT_CHECK(sample.size() == last_sample_.size());

    predict_clean(index, velocity, sample);
    if (index > 0 && corrects(index)) correct(index, sample);
    std::swap(older_, newer_);
    std::swap(newer_, fresh_);
    order_ = static_cast<int>(std::min<int64_t>({config_.solver_order, steps() - index, steps_done_ + 1}));
    std::copy(sample.begin(), sample.end(), last_sample_.begin());
    predict_next(index, sample);
    steps_done_ = std::min(steps_done_ + 1, config_.solver_order);
    next_ = index + 1;
  }

 private:
  // What both halves of a step share, from level s to level t: x_t = ratio·x − scale·(m0 + …).
  struct Span {
    float h, ratio, scale;
    Span(float s, float t) : h(lambda(t) - lambda(s)), ratio(t / s), scale((1.0f - t) * std::expm1(-h)) {}
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

  // fresh_ = x − σ·v. PyTorch casts a 0-dim σ to the dtype of v before it multiplies on the CPU: rounding the product
  // alone misses the recorded bfloat16 steps by up to 2^-8.
  void predict_clean(int64_t index, std::span<const float> velocity, std::span<const float> sample) {
    const float sigma = sigmas_[static_cast<size_t>(index)];
    if (config_.velocity == VelocityDType::kBF16) {
      for (size_t i = 0; i < sample.size(); ++i) fresh_[i] = sample[i] - round_bf16(round_bf16(sigma) * velocity[i]);
    } else {
      for (size_t i = 0; i < sample.size(); ++i) fresh_[i] = sample[i] - sigma * velocity[i];
    }
  }

  // Replaces the sample by what the last step would have given, had it known the clean sample predicted now.
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
    const float r = (lambda(sigmas_[i - 2]) - lambda(sigmas_[i - 1])) / span.h;
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
    const float r = order_ == 1 ? 1.0f : (lambda(sigmas_[i - 1]) - lambda(sigmas_[i])) / span.h;
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

class FlowMatchEuler final : public Solver {
 public:
  explicit FlowMatchEuler(const SolverConfig& config) : velocity_(config.velocity) {
    const auto train = static_cast<double>(config.num_train_timesteps);
    // The reference shifts its table when it is made, in float32, takes the ends from there, and shifts again.
    const auto shift = static_cast<float>(config.shift);
    const double low = static_cast<double>(shifted(shift, 1.0f / static_cast<float>(config.num_train_timesteps)));
    for (int64_t i = 0; i < config.steps; ++i) {
      const double sigma = shifted(config.shift, linspace(train, low * train, config.steps, i) / train);
      sigmas_.push_back(static_cast<float>(sigma));
      timesteps_.push_back(sigmas_.back() * static_cast<float>(train));
    }
    sigmas_.push_back(0.0f);
  }

  void step(int64_t index, std::span<const float> velocity, std::span<float> sample) override {
    ZT_CHECK(0 <= index && index < steps() && velocity.size() == sample.size());
    const auto i = static_cast<size_t>(index);
    const float difference = sigmas_[i + 1] - sigmas_[i];
    for (size_t k = 0; k < sample.size(); ++k) {
      sample[k] = velocity_ == VelocityDType::kBF16
                      ? round_bf16(sample[k] + round_bf16(round_bf16(difference) * velocity[k]))
                      : sample[k] + difference * velocity[k];
    }
  }

 private:
  const VelocityDType velocity_;
};

}  // namespace

SolverKind parse_solver_kind(const std::string& name) {
  if (name == "unipc" || name == "UniPCMultistepScheduler") return SolverKind::kUniPC;
  if (name == "flow_match_euler" || name == "FlowMatchEulerDiscreteScheduler") return SolverKind::kFlowMatchEuler;
  fail("unknown solver '{}'; use unipc or flow_match_euler", name);
}

std::unique_ptr<Solver> Solver::create(const SolverConfig& config) {
  constexpr double kMinShift = 1e-3, kMaxShift = 1e3;
  constexpr int64_t kMaxTrainTimesteps = 1'000'000;
  if (config.num_train_timesteps < 1 || config.num_train_timesteps > kMaxTrainTimesteps) {
    fail("num_train_timesteps is {}, but must be from 1 to {}", config.num_train_timesteps, kMaxTrainTimesteps);
  }
  if (config.steps < 1 || config.steps > config.num_train_timesteps) {
    fail("{} denoising steps are asked for, but the number must be from 1 to {}", config.steps,
         config.num_train_timesteps);
  }
  if (!(config.shift >= kMinShift && config.shift <= kMaxShift)) {
    fail("the flow shift is {}, but must be from {} to {}", config.shift, kMinShift, kMaxShift);
  }
  if (config.solver_order < 1 || config.solver_order > 2) {
    fail("solver_order is {}, but only 1 and 2 are supported", config.solver_order);
  }
  std::unique_ptr<Solver> solver;
  if (config.kind == SolverKind::kUniPC) {
    solver = std::make_unique<UniPC>(config);
  } else {
    solver = std::make_unique<FlowMatchEuler>(config);
  }
  for (size_t i = 0; i + 1 < solver->sigmas_.size(); ++i) {
    if (solver->sigmas_[i] > solver->sigmas_[i + 1]) continue;
    fail("a flow shift of {} leaves no two of {} steps apart in float32; use a smaller shift or fewer steps",
         config.shift, config.steps);
  }
  return solver;
}

}  // namespace zoetrope::wan
