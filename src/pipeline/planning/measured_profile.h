// The hardware profile of this machine from what was measured on first use. Measures nothing (that is
// machine/first_use.h).
#pragma once

#include "machine/first_use.h"
#include "planner/hardware.h"

namespace zoetrope::pipeline {

// One rank on all cores of the machine. `any_cpu`, the profile of a CPU in general, says how figures change with sizes
// and what lies between hosts; the measured points say how fast this machine is.
planner::HardwareProfile measured_profile(const planner::HardwareProfile& any_cpu,
                                          const machine::KnownMachine& machine);

}  // namespace zoetrope::pipeline
