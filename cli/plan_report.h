// What `zoetrope plan` found, as one struct, and the three who write it down: the terminal (plan_text.cpp), JSON
// (plan_json.cpp) and the page (plan_report.cpp). They compute nothing that is not in the struct, so that all say the
// same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_settings.h"
#include "planner/doubt.h"
#include "planner/hardware.h"
#include "planner/search.h"
#include "planner/simulator.h"
#include "planner/work.h"

namespace zoetrope::cli {

// The answer for one number of ranks. Numbers of a part without a plan that fits are 0.
struct PlanPart {
  int ranks = 1;
  planner::HardwareProfile hardware;     // the devices that these ranks use
  planner::Bytes memory_limit;           // of each of them; where they share a host's its part
  planner::Ranking ranking;              // best first; best() is null where nothing fits
  planner::StepPrediction best_step;     // of the best, with the time line of one layer
  int runs = 1;                          // of the best, side by side
  double seconds = 0;                    // of a video, with the best
  double videos_per_hour = 0;            // of all runs
  double speed_up = 0;                   // of these, against the part with the fewest ranks that fits, and …
  double efficiency = 0;                 // … the same by ranks: 1 is ideal
  double device_seconds = 0;             // of a video
  double price = 0;                      // of a video; 0: no price is known
  planner::Doubts doubts;                // assumed figures that decide
  std::vector<std::string> settings;     // of one run of the best, as generate takes them
  std::vector<OtherSystem> systems;      // what others call its split; empty for profiles of CPUs
  std::vector<std::string> explanation;  // sentences about the best: what limits it, what is tied with it
};

struct PlanReport {
  std::string title;                  // "Wan 2.2 A14B, 1280 x 720, 81 frames, on 8 x H100"
  std::vector<std::string> question;  // a line a fact, as printed above the tables: model, size, dtypes, hardware …
  std::vector<std::string>
      notes;  // of the question, what makes the answer doubtful or is not asked for in so many words
  std::vector<std::string> answer;  // sentences for the whole question: what to use, which ranks pay, what to buy
  planner::Work work;
  planner::HardwareProfile hardware;                         // as asked for, what_if applied
  std::vector<std::pair<std::string, std::string>> what_if;  // key (without "what_if."), value
  planner::Objective objective = planner::Objective::kLatency;
  std::vector<PlanPart> parts;  // in ascending order of ranks; at least one
};

// As the terminal shows it: a table of splits, what the other settings of the best change, a line each for what does
// not fit or is illegal, and a scaling curve.
std::string plan_text(const PlanReport& report, int64_t top);

// Every candidate with its degrees, times, memory, verdict and reason. The keys are listed in docs/planner.md. Throws
// Error where it cannot be written; nothing half-written stands under the name.
void write_plan_json(const PlanReport& report, const std::filesystem::path& path);

// The page: self-contained, no script or font from elsewhere.
std::string plan_page(const PlanReport& report);
// Throws Error where it cannot be written; nothing half-written stands under the name.
void write_plan_page(const PlanReport& report, const std::filesystem::path& path);

}  // namespace zoetrope::cli
