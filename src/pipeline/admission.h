// Whether a run fits before anything of it is read: the memory plan of its options, the limits of this machine, and
// where they do not go together one sentence with the numbers and with what would fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/generate_options.h"
#include "pipeline/hosts.h"
#include "pipeline/run_workload.h"
#include "planner/available.h"

namespace zoetrope::pipeline {

// Empty where the run fits into the tightest of `limits`, if need be with a part of its weights.
std::string refusal(const MemoryQuestion& question, const std::vector<planner::MemoryLimit>& limits);

// Changes of the options that make it fit, the mildest of each kind: "dtype=bf16 (3.41 GB)". At most five.
std::vector<std::string> what_would_fit(const MemoryQuestion& question, planner::Bytes available);

// What planner::memory_limits() asks about a process like this one, of which `processes` share the host, and which will
// start `threads` compute threads.
planner::AvailableQuery query_here(int processes, int threads);

// What a process may have here. Collective over `world`, or null: processes of one host share its memory.
std::vector<planner::MemoryLimit> limits_here(const MemoryQuestion& question, comm::Communicator* world);

// Collective. Throws Error on every rank where the memory of one is too little.
void admit(const MemoryQuestion& question, comm::Communicator& world);

}  // namespace zoetrope::pipeline
