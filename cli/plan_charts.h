// The charts of the plan page: where a step's time goes, what is held phase by phase, and one layer rank by rank. One
// colour stands for one thing in all of them.
#pragma once

#include <string>

#include "bench/report.h"
#include "cli/plan_report.h"

namespace zoetrope::cli {

bool priced(const planner::Candidate& candidate);  // its parts of a step are known
std::string part_title(const PlanPart& part);      // "8 ranks"

bench::StackedPlot step_bars(const PlanPart& part);
bench::StackedPlot scaling_bars(const PlanReport& report);  // the best of every number of ranks
bench::StackedPlot memory_bars(const PlanPart& part, const planner::Candidate& candidate);
bench::TimelinePlot timeline(const planner::StepPrediction& step);

}  // namespace zoetrope::cli
