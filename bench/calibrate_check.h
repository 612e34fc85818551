// A measured profile against a run: one layer's attention over all ranks, as the simulator predicts it and as it takes.
// For calibrate.cpp only.
#pragma once

#include <vector>

#include "bench/calibrate.h"
#include "bench/calibrate_rank.h"

namespace zoetrope::bench {

// Collective. `profile` on rank 0, which has the result; null elsewhere. `peak`: multiply-adds a second of a rank, as
// they were when the profile was measured.
std::vector<SelfCheck> check_profile(CalibrationRank& rank, const planner::HardwareProfile* profile, DType dtype,
                                     double peak);

}  // namespace zoetrope::bench
