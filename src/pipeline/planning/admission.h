// Whether a run fits before anything of it is read: the memory plan of its options, the limits of this machine, and
// where they do not go together one sentence with the numbers and with what would fit.
#pragma once

#include <string>
#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/planning/run_workload.h"
#include "pipeline/planning/what_would_fit.h"
#include "planner/available.h"

namespace zoetrope::pipeline {

// Empty where the run fits into the tightest of `limits`, if need be with a part of its weights.
std::string refusal(const MemoryQuestion& question, const std::vector<planner::MemoryLimit>& limits,
                    const StepSeconds& step_seconds = {});

// What compare_one_rank asks for: the same on one rank, which shares weights with nobody.
MemoryQuestion one_rank_question(const MemoryQuestion& run);

// Collective. Throws Error on every rank where the memory of one is too little.
void admit(const MemoryQuestion& question, comm::Communicator& world, const StepSeconds& step_seconds = {});

}  // namespace zoetrope::pipeline
