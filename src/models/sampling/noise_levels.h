// The noise levels that a run visits and the timesteps that the model is told for them, as the reference's
// set_timesteps computes both: a grid of N levels or the levels a user gives, then the shift. Not the steps between
// them.
#pragma once

#include <vector>

#include "models/sampling/solver.h"

namespace zoetrope::sampling {

struct NoiseLevels {
  std::vector<float> timesteps;  // [N]
  std::vector<float> sigmas;     // [N + 1], falling, the last 0
};

NoiseLevels multistep_levels(const SolverConfig& config);  // UniPC and DPMSolver++
NoiseLevels flow_match_euler_levels(const SolverConfig& config);

// Throws Error where config.sigmas or config.timesteps are no levels to denoise from: empty is right, else finite,
// above 0, at most 1 (num_train_timesteps), falling; and not both.
void check_given_levels(const SolverConfig& config);

}  // namespace zoetrope::sampling
