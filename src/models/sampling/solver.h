// From noise to a clip: the noise levels of a run and the step between two of them. Pure arithmetic in one process; it
// is elementwise, so ranks have equal latents or step their own part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/sampling.h"

namespace zoetrope::sampling {

std::vector<std::string> solver_names();                // as keys spell them: "unipc", "flow_match_euler", "dpmpp"
SolverKind parse_solver_kind(const std::string& name);  // one of these or a class of diffusers
const char* solver_name(SolverKind kind);

enum class VelocityDType : uint8_t { kF32, kBF16 };

struct SolverConfig {
  SolverKind kind = SolverKind::kUniPC;
  int64_t steps = 50;  // not used where levels are given
  double shift = 3.0;  // flow_shift; shift of FlowMatchEuler
  int64_t num_train_timesteps = 1000;
  SigmaGrid grid = SigmaGrid::kFromOne;
  // Noise levels instead of a grid, for models distilled to a few steps: as σ from 1 to above 0, or as timesteps
  // (σ times num_train_timesteps); one of the two, falling, without the final 0. The shift applies to them too, as in
  // the reference.
  std::vector<double> sigmas;
  std::vector<double> timesteps;
  int solver_order = 2;                    // UniPC, DPMSolver++: 1 or 2
  std::vector<int64_t> disable_corrector;  // UniPC: steps after which the corrector is left out
  // What step() is given: values of a bfloat16 model keep its roundings, as the reference's CPU tensors do. The noise
  // level and its product with the velocity are rounded to bfloat16; FlowMatchEuler rounds the sample too.
  VelocityDType velocity = VelocityDType::kF32;
};

struct NoiseLevels;

// What a solver remembers from the steps it has made: to go on with another one of the same configuration.
struct SolverState {
  int64_t next = 0;                        // the step that follows
  std::vector<int64_t> counters;           // each kind its own
  std::vector<std::vector<float>> arrays;  // likewise, each of the size of the sample
};

class Solver {
 public:
  static std::unique_ptr<Solver> create(const SolverConfig& config);  // values out of range: Error
  virtual ~Solver() = default;

  int64_t steps() const { return static_cast<int64_t>(timesteps_.size()); }
  std::span<const float> timesteps() const { return timesteps_; }  // [steps]; whole numbers but for FlowMatchEuler
  std::span<const float> sigmas() const { return sigmas_; }        // [steps + 1], falling, the last 0

  // Moves `sample` from sigmas()[index] to sigmas()[index + 1]. `velocity` is what the model predicts for `sample`,
  // guidance applied. Steps come in order; index 0 begins a new run of any size.
  virtual void step(int64_t index, std::span<const float> velocity, std::span<float> sample) = 0;

  // After at least one step. restore() takes a state of a solver of this configuration; throws Error for one that
  // cannot be that of a sample of `size` values.
  virtual SolverState state() const = 0;
  virtual void restore(const SolverState& state, size_t size) = 0;

 protected:
  void set_levels(NoiseLevels levels);
  // Throws Error unless the state is between the first and the last step and has so many counters and arrays.
  void check_state(const SolverState& state, size_t size, size_t counters, size_t arrays) const;

  std::vector<float> timesteps_;
  std::vector<float> sigmas_;
};

}  // namespace zoetrope::sampling
