// Whether a run fits before anything of it is read: the memory plan of its options, the limits of this machine, and
// where they do not go together one sentence with the numbers and with what would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/planning/run_workload.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/settings/generate_options.h"
#include "planner/available.h"

namespace zoetrope::pipeline {

// Predicted seconds of a step of a run, whose layout is one of this job; unset where nobody knows.
using StepSeconds = std::function<std::optional<double>(const MemoryQuestion&)>;

// Empty where the run fits into the tightest of `limits`, if need be with a part of its weights.
std::string refusal(const MemoryQuestion& question, const std::vector<planner::MemoryLimit>& limits,
                    const StepSeconds& step_seconds = {});

// What compare_one_rank asks for: the same on one rank, which shares weights with nobody.
MemoryQuestion one_rank_question(const MemoryQuestion& run);

// Changes of the options that make it fit, the mildest of each kind: "dtype=bf16 (3.41 GB)". At most eight. Those of
// where weights are say what they cost: "weight_memory=1.2 (3.41 GB, 5.1 s a step)".
std::vector<std::string> what_would_fit(const MemoryQuestion& question, planner::Bytes available,
                                        const StepSeconds& step_seconds = {});

// What planner::memory_limits() asks about a process like this one, of which `processes` share the host, and which will
// start `threads` compute threads.
planner::AvailableQuery query_here(int processes, int threads);

// What a process may have here, where it shares the host's memory with the others of its job: `processes_here` in all.
std::vector<planner::MemoryLimit> limits_here(const MemoryQuestion& question, int processes_here);

// Collective. Throws Error on every rank where the memory of one is too little.
void admit(const MemoryQuestion& question, comm::Communicator& world, const StepSeconds& step_seconds = {});

}  // namespace zoetrope::pipeline
