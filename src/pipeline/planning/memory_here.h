// The memory that a process may have on this machine as it is now.
#pragma once

#include <vector>

#include "pipeline/planning/run_workload.h"
#include "planner/available.h"

namespace zoetrope::pipeline {

// What planner::memory_limits() asks about a process like this one, of which `processes` share the host, and which will
// start `threads` compute threads.
planner::AvailableQuery query_here(int processes, int threads);

// What a process may have here, where it shares the host's memory with the others of its job: `processes_here` in all.
std::vector<planner::MemoryLimit> limits_here(const MemoryQuestion& question, int processes_here);

}  // namespace zoetrope::pipeline
