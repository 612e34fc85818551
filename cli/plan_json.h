// The answer of `zoetrope plan` as JSON: every candidate with its degrees, times, memory, verdict and reason. The keys
// are listed in docs/planner.md.
#pragma once

#include <filesystem>

#include "cli/plan_report.h"

namespace zoetrope::cli {

// Throws Error where it cannot be written; nothing half-written stands under the name.
void write_plan_json(const PlanReport& report, const std::filesystem::path& path);

}  // namespace zoetrope::cli
