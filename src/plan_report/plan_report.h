// What `zoetrope plan` answers: its options (plan_options.cpp), its answer as one struct (plan_answer.cpp), and that
// struct as JSON (plan_json.cpp), which computes nothing itself, as text and page do not (cli/plan.h), so that all
// agree. Prints and writes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "pipeline/settings/generate_options.h"
#include "planner/doubt.h"
#include "planner/hardware.h"
#include "planner/search.h"
#include "planner/simulator.h"
#include "planner/work.h"

namespace zoetrope::plan_report {

// ---- options: plan's own keys, and those of generate that say what is planned and what is fixed ---------------------

struct PlanOptions {
  pipeline::GenerateOptions run;          // starts from the YAML of a model of configs/
  std::string ignored;                    // see ignored_note()
  std::shared_ptr<const OptionSet> keys;  // of `run`, to say where a value was given
  std::filesystem::path folder;
  std::string hardware;    // a name of configs/hardware/ or a file; empty: what was calibrated on this machine
  std::vector<int> ranks;  // ascending, without duplicates
  std::optional<int> ranks_per_process;
  planner::Objective objective = planner::Objective::kLatency;
  std::optional<double> price;  // per device and hour, in any currency; overrides the profile's
  std::vector<std::pair<std::string, std::string>> what_if;  // key without "what_if.", value
  std::string json, report, trace;                           // files; empty: none
  int64_t top = 10;                                          // lines per table
  bool published = false;                                    // the table of published runs; then nothing else is set
};

// Throws Error for an unknown key (with the nearest) and an illegal value (with the legal ones).
PlanOptions parse_plan_options(const std::vector<std::string>& words);
std::string plan_help();

// ---- a configuration as keys of `zoetrope generate` and of other systems (plan_settings.cpp) ------------------------

// Arguments of generate for one run, each key=value, that fix how the ranks are used: "ranks=8", "data_parallelism=2",
// … And those of `run` that say how many videos are made together, and of how many layers.
std::vector<std::string> settings_of(const planner::Candidate& candidate, const pipeline::GenerateOptions& run);
std::string settings_text(const std::vector<std::string>& settings);  // in one line for a shell

struct OtherSystem {
  std::string name;
  std::string flags;  // for one run; empty where the split is not possible there
  std::string note;   // then the reason; otherwise a difference, if there is one
};
std::string system_text(const OtherSystem& system);  // "not possible there: …", or the flags and the difference

// diffusers, xDiT, SGLang and MaxDiffusion; docs/planner.md says which version of each. `pictures`: whether the model
// is conditioned on a picture.
std::vector<OtherSystem> other_systems(const planner::Candidate& candidate, const planner::Work& work, bool pictures);

// ---- the answer -----------------------------------------------------------------------------------------------------

// For one number of ranks. Where no plan fits, numbers are 0.
struct PlanPart {
  int ranks = 1;
  planner::HardwareProfile hardware;  // of the devices that these ranks use
  planner::Bytes memory_limit;        // per device; where devices share a host's memory, its part
  planner::Ranking ranking;           // best first; best() is null where nothing fits
  planner::StepPrediction best_step;  // of the best, with the timeline of one layer
  // Of a step of the best if keys and values travelled as computed; unset where they do, or do not travel.
  std::optional<double> step_seconds_as_computed;
  // What starts one run of the best, before its settings.
  std::string command = "zoetrope generate";
  int runs = 1;                          // of the best, side by side
  int64_t videos = 1;                    // of a run: those of a batch
  double seconds = 0;                    // per video, with the best
  double videos_per_hour = 0;            // of all runs
  double speed_up = 0;                   // of these, relative to the part with the fewest ranks that fits
  double efficiency = 0;                 // speed_up per rank: 1 is ideal
  double device_seconds = 0;             // per video
  double price = 0;                      // per video; 0: unknown
  planner::Doubts doubts;                // assumed figures that decide
  std::vector<std::string> settings;     // of one run of the best, as generate takes them
  std::vector<OtherSystem> systems;      // the best in other systems; empty for profiles of CPUs
  std::vector<std::string> explanation;  // sentences about the best: what limits it, which others are tied with it
};

struct PlanReport {
  std::string title;                  // "Wan 2.2 A14B, 1280 x 720, 81 frames, on 8 x H100"
  std::vector<std::string> question;  // one line per fact, as printed above the tables: model, size, dtypes, hardware …
  std::vector<std::string> notes;     // of the question: what was assumed, and what makes the answer doubtful
  std::vector<std::string> answer;    // sentences for the whole question: what to use, and which ranks pay
  planner::Work work;
  planner::HardwareProfile hardware;                         // the requested one, with what_if applied
  std::vector<std::pair<std::string, std::string>> what_if;  // key (without "what_if."), value
  planner::Objective objective = planner::Objective::kLatency;
  std::vector<PlanPart> parts;  // in ascending order of ranks; at least one
};

// Throws Error for a model that cannot run, sizes that it cannot make, a profile that is none, and fixed values that
// leave nothing legal.
PlanReport plan_answer(const PlanOptions& options);

// Every candidate with its degrees, times, memory, verdict and reason; docs/planner.md lists the keys.
std::string plan_json(const PlanReport& report);

// ---- texts that terminal, JSON and page share (plan_words.cpp) ------------------------------------------------------

// "data 2 x context 2 …", with the ranks that decode where there are several.
std::string configuration_text(const planner::Candidate& candidate);
// The same of several runs side by side on `ranks`: "2 runs of data 2 x context 2 …".
std::string configuration_text(const planner::Candidate& candidate, int ranks);
double video_seconds(const PlanPart& part, const planner::Candidate& candidate);
std::string seconds_text(double seconds);  // "8.12 ms", "3.41 s", "12.3 min", "4.2 h"

// Why a candidate of the ranking has its verdict, and the assumed figure that decides it.
std::string reason_text(const PlanPart& part, size_t candidate);
std::string verdict_words(planner::Verdict verdict);  // "does not fit"

// For one number of ranks: what is best and why, the alternatives, and the figures that the verdict depends on.
std::vector<std::string> explanation_of(const PlanPart& part);
// For all: what to use, and how much more of it gains.
std::vector<std::string> answer_of(const std::vector<PlanPart>& parts);

}  // namespace zoetrope::plan_report
