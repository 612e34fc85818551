// The solvers behind Solver::create(), each in a file of its own, and what they share. Not for callers: values are
// checked by create().
#pragma once

#include <memory>
#include <span>

#include "models/sampling/solver.h"

namespace zoetrope::sampling {

std::unique_ptr<Solver> make_uni_pc(const SolverConfig& config);
std::unique_ptr<Solver> make_dpm_solver(const SolverConfig& config);
std::unique_ptr<Solver> make_flow_match_euler(const SolverConfig& config);

// ln α − ln σ with the signal level α = 1 − σ: half the log of the signal-to-noise ratio.
float log_snr(float sigma);

float round_bf16(float value);

// clean = x − σ·v.
void predict_clean(float sigma, VelocityDType dtype, std::span<const float> velocity, std::span<const float> sample,
                   std::span<float> clean);

}  // namespace zoetrope::sampling
