// The answer of `zoetrope plan` as the terminal shows it: a table of splits, what the other settings of the best
// change, a line each for what does not fit or is illegal, and a scaling curve.
#pragma once

#include <cstdint>
#include <string>

#include "cli/plan_report.h"

namespace zoetrope::cli {

std::string plan_text(const PlanReport& report, int64_t top);

}  // namespace zoetrope::cli
