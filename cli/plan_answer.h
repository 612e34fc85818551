// From the words of `zoetrope plan` to its answer: the model's work and memory, the profile with its what_if, a search
// for each number of ranks, and what follows for people. Prints and writes nothing.
#pragma once

#include <string>

#include "cli/plan_options.h"
#include "cli/plan_report.h"

namespace zoetrope::cli {

// Throws Error for a model that cannot run, sizes that it cannot make, a profile that is none, and fixed values that
// leave nothing legal.
PlanReport plan_answer(const PlanOptions& options);

// As people read it, with the ranks that decode where there are several.
std::string configuration_text(const planner::Candidate& candidate);
std::string seconds_text(double seconds);  // "8.12 ms", "3.41 s", "12.3 min", "4.2 h"

}  // namespace zoetrope::cli
