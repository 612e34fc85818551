// From the words of `zoetrope plan` to its answer: the model's work and memory, the profile with its what_if, a search
// for each number of ranks, and what follows for people. Prints and writes nothing.
#pragma once

#include "cli/plan_options.h"
#include "cli/plan_report.h"

namespace zoetrope::cli {

// Throws Error for a model that cannot run, sizes that it cannot make, a profile that is none, and fixed values that
// leave nothing legal.
PlanReport plan_answer(const PlanOptions& options);

}  // namespace zoetrope::cli
