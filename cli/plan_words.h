// What a plan's numbers say, in sentences and short texts that terminal, JSON and page share.
#pragma once

#include <string>
#include <vector>

#include "cli/plan_report.h"

namespace zoetrope::cli {

// As people read it, with the ranks that decode where there are several.
std::string configuration_text(const planner::Candidate& candidate);
// The same of several runs side by side on `ranks`: "2 runs of data 2 x context 2 …".
std::string configuration_text(const planner::Candidate& candidate, int ranks);
std::string seconds_text(double seconds);  // "8.12 ms", "3.41 s", "12.3 min", "4.2 h"

// Why a candidate of the ranking has its verdict, and the assumed figure that this hangs on.
std::string reason_text(const PlanPart& part, size_t candidate);
std::string verdict_words(planner::Verdict verdict);  // "does not fit"

// Of one number of ranks: what is best and why, what may be preferred to it, and what the verdict rests on.
std::vector<std::string> explanation_of(const PlanPart& part);
// Of all: what to use, and how far more of it pays.
std::vector<std::string> answer_of(const std::vector<PlanPart>& parts);

}  // namespace zoetrope::cli
