// The words of `zoetrope plan`: its own keys, and those of generate that say what is planned and what is fixed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/generate_options.h"
#include "planner/search.h"

namespace zoetrope::cli {

struct PlanOptions {
  pipeline::GenerateOptions run;  // beginning with the YAML of a model of configs/
  std::filesystem::path folder;
  std::string hardware;    // a name of configs/hardware/ or a file; empty: what was calibrated here
  std::vector<int> ranks;  // ascending, each once
  std::optional<int> ranks_per_process;
  planner::Objective objective = planner::Objective::kLatency;
  std::optional<double> price;  // of a device and hour, in any currency; over the profile's
  std::vector<std::pair<std::string, std::string>> what_if;  // key without "what_if.", value
  std::string json, report, trace;                           // files; empty: none
  int64_t top = 10;                                          // lines of a table
  bool published = false;                                    // the table of published runs; then nothing else is set
};

// Throws Error for an unknown key (with the nearest) and an illegal value (with the legal ones).
PlanOptions parse_plan_options(const std::vector<std::string>& words);
std::string plan_help();

}  // namespace zoetrope::cli
