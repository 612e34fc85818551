#include "pipeline/planning/measured_profile.h"

#include <algorithm>

#include "base/error.h"
#include "machine/layer_work.h"
#include "planner/calibrated.h"

namespace zoetrope::pipeline {
namespace {

double most(const planner::Curve& curve) {
  double y = 0;
  for (const planner::Curve::Point& point : curve.points()) y = std::max(y, point.y);
  return curve.points().empty() ? 1 : y;
}

// The curves of `compute` through the measured rates. A library may know faster instructions than the multiply-adds
// that were timed (AMX): then the fastest operation is the peak, and no fraction is above 1 but that of
// convolutions, which Winograd's algorithm does with fewer operations than are counted.
void fit(planner::ComputeFigures& compute, const machine::DtypeRates& rates) {
  const auto rows = static_cast<double>(rates.gemm_rows), tokens = static_cast<double>(rates.attention_tokens);
  compute.int8_gain = rates.int8_gain;
  compute.fixed_max_gain = rates.fixed_max_gain;
  compute.int8_attention_gain = rates.int8_attention_gain;
  const double keys = compute.attention_keys.points().empty() ? 1 : compute.attention_keys.at(tokens);
  const double gemm = rates.gemm / compute.gemm.at(rows);
  const double attention = rates.attention / (compute.attention.at(tokens) * keys);
  const double best_attention =
      attention * most(compute.attention) * most(compute.attention_keys) * std::max(1.0, compute.fixed_max_gain);
  // The fraction of the fastest is 1 but for rounding, which must not make it more.
  constexpr double kRounding = 1 + 1e-12;
  const double convolution = rates.convolution / planner::ComputeFigures::kMostConvolution;
  compute.peak = std::max(rates.peak, kRounding * std::max({convolution, gemm * most(compute.gemm), best_attention}));
  compute.gemm.scale(gemm / compute.peak);
  compute.attention.scale(attention / compute.peak);
  compute.convolution = rates.convolution / compute.peak;
}

}  // namespace

planner::HardwareProfile measured_profile(const planner::HardwareProfile& any_cpu,
                                          const machine::KnownMachine& machine) {
  const machine::Figures& figures = machine.figures;
  planner::HardwareProfile profile = any_cpu;
  profile.description = "this machine, measured on first use";
  profile.calibration = planner::HardwareProfile::Calibration{machine.key.cpu, 1, 1, machine.key.cores, machine.date};
  fit(profile.bf16, figures.bf16);
  fit(profile.float32, figures.float32);
  // What ranks of a host send to each other goes through the same memory.
  for (planner::LinkLevel& level : profile.links)
    if (level.name == planner::kHostLevel) level.bandwidth *= figures.copy / profile.memory_bandwidth;
  profile.memory_bandwidth = figures.copy;
  profile.host_read = figures.host_read;
  profile.token_seconds = figures.token_seconds;
  profile.token_width = machine::kLayerWidth;
  profile.layer_overhead = figures.layer_overhead;
  // What was measured is assumed no more: what lies between hosts still is.
  std::erase_if(profile.assumed, [](const planner::HardwareProfile::Assumption& assumed) {
    return !assumed.figure.starts_with("links.");
  });
  check_hardware(profile, "the measured figures");
  return profile;
}

}  // namespace zoetrope::pipeline
