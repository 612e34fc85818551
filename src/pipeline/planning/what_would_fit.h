// What a user can change where a run does not fit into memory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/planning/run_workload.h"
#include "planner/bytes.h"

namespace zoetrope::pipeline {

// Predicted seconds of a step of a run, whose layout is one of this job; unset where nobody knows.
using StepSeconds = std::function<std::optional<double>(const MemoryQuestion&)>;

// Changes of the options that make it fit, the mildest of each kind: "dtype=bf16 (3.41 GB)". At most eight. Those of
// where weights are say what they cost: "weight_memory=1.2 (3.41 GB, 5.1 s a step)".
std::vector<std::string> what_would_fit(const MemoryQuestion& question, planner::Bytes available,
                                        const StepSeconds& step_seconds = {});

// The least that this model can be asked to do.
MemoryQuestion smallest_question(const MemoryQuestion& question);

// "dtype=bf16 (3.41 GB)".
std::string with_peak(const std::string& words, planner::Bytes peak);

}  // namespace zoetrope::pipeline
