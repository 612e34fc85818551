// One timed context-parallel attention: what every rank does, and what was measured. Knows no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "cli/attention_data.h"
#include "cli/attention_options.h"
#include "pipeline/auto_plan.h"
#include "trace/trace.h"

namespace zoetrope::cli {

// The same on every rank.
struct AttentionMeasurement {
  attention::Problem problem;  // scale filled in
  attention::Strategy strategy;
  std::string implementation;
  int ranks = 1;
  int threads = 1;  // of one rank
  double flop = 0;  // of one run, all ranks: 4·Sq·D·H for each valid key of a batch entry

  // What was expected; rank 0's. None with keys of their own, where nothing is to be chosen.
  std::optional<pipeline::AutoPlan> planned;

  // One number a repeat. Runs that are too short for the clock are done several times in a repeat, of which this is the
  // mean.
  std::vector<double> seconds;       // of the slowest rank
  std::vector<double> peak_flops;    // of all threads of all ranks together; mean of the windows before and after
  std::vector<double> wait_seconds;  // of one run, of the rank that waited longest

  // Of one run, summed over ranks.
  int64_t bytes_sent = 0;
  int64_t tiles_fixed = 0;
  int64_t tiles_online = 0;

  double seconds_min() const;
  double seconds_median() const;
  double flops() const { return flop / seconds_median(); }
  double median_peak_flops() const;
};

// What ranks of one process share, and a rank of an MPI job has for itself.
struct AttentionRun {
  const AttentionOptions& options;
  const AttentionData& data;
  TensorView o;        // [B, Sq, H, D] of q's dtype; a rank writes its own tokens
  int threads = 1;     // of one rank
  bool shared = true;  // the ranks are threads of this process: data and o are those of all of them
  trace::Trace* trace = nullptr;
};

// Fills random data, runs once to warm up and then options.repeat times, each between two windows in which the
// machine's peak is measured for as long. Collective.
AttentionMeasurement run_attention(const AttentionRun& run, comm::Communicator& world);

// The tokens of all ranks in rank 0's o. Collective; nothing to do where o is shared.
void gather_output(const AttentionRun& run, comm::Communicator& world);

}  // namespace zoetrope::cli
