// The answer of `zoetrope plan` (plan_report/plan_report.h) for people: as text (plan_text.cpp) and as a page
// (plan_page.cpp).
#pragma once

#include <cstdint>
#include <string>

#include "plan_report/plan_report.h"

namespace zoetrope::cli {

// For the terminal: a table of splits, what the other settings of the best change, one line for each split that does
// not fit or is illegal, and a scaling curve.
std::string plan_text(const plan_report::PlanReport& report, int64_t top);
// The page: self-contained, without scripts.
std::string plan_page(const plan_report::PlanReport& report);

}  // namespace zoetrope::cli
