// What the planner predicted for a run and what the run took, part by part, and where the two differ most. The
// memory of the same run is memory_report.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/model.h"

#include "planner/simulator.h"
#include "trace/timing.h"

namespace zoetrope::pipeline {

// Seconds of rank 0.
struct MeasuredRun {
  std::optional<double> load;  // unset where nothing was read
  double text_encoder = 0;
  double conditions = 0;                    // pictures and videos, where there are any
  double denoise = 0;                       // all steps
  double exchange_wait = 0, ring_wait = 0;  // of these
  std::optional<double> vae;                // unset where nothing was decoded
  int64_t steps = 1;
};

enum class WeightsRead : uint8_t { kFromFiles, kNotRead };
enum class Frames : uint8_t { kDecoded, kNone };
// From the phases of the timing summary and what attention counted in all steps.
MeasuredRun measured_run(const trace::Timing& timing, const attention::Counters& attention, int64_t steps,
                         WeightsRead weights, Frames frames);

// Seconds of the whole run; denoising is divided into computing and the waits of attention.
std::vector<PredictedPart> predicted_parts(const planner::RunPrediction& predicted, const MeasuredRun& measured);

// Whether the run was far faster than predicted in what takes it longest: the machine is faster than its figures say,
// for nothing makes it faster than it is. What takes less than a second tells nothing.
bool far_faster(const std::vector<PredictedPart>& parts);

// "Predicted 40 h 12 min in all: load 1 min 4 s, text encoder 8 s, denoise 40 h 3 min, VAE decode 7 min 30 s".
// `one_rank`: seconds that the second denoising of compare_one_rank adds to the total; 0: none.
std::string predicted_total_text(const planner::RunPrediction& predicted, WeightsRead weights, double one_rank = 0);

// "denoise: computing, 1.2 s more than predicted (+31 %)"; empty where nothing was predicted. Of denoising its parts
// count, which say more.
std::string largest_deviation(const std::vector<PredictedPart>& parts);

// Lines for people, under the timing summary, with a line feed at the end.
std::string predicted_text(const std::vector<PredictedPart>& parts, int64_t steps);

}  // namespace zoetrope::pipeline
