// The plain step along the velocity.
#include "base/error.h"
#include "models/sampling/noise_levels.h"
#include "models/sampling/solver_kinds.h"

namespace zoetrope::sampling {
namespace {

class FlowMatchEuler final : public Solver {
 public:
  explicit FlowMatchEuler(const SolverConfig& config) : velocity_(config.velocity) {
    set_levels(flow_match_euler_levels(config));
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
    next_ = index + 1;
  }

  // Nothing is remembered but the place.
  SolverState state() const override { return {next_, {}, {}}; }
  void restore(const SolverState& state, size_t size) override {
    check_state(state, size, 0, 0);
    next_ = state.next;
  }

 private:
  const VelocityDType velocity_;
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Solver> make_flow_match_euler(const SolverConfig& config) {
  return std::make_unique<FlowMatchEuler>(config);
}

}  // namespace zoetrope::sampling
