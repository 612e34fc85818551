// `zoetrope attention` on one rank: fills random data, asks for a plan, and has it timed (bench/attention_run.h).
#pragma once

#include <optional>

#include "zoetrope/communicator.h"

#include "bench/attention_run.h"
#include "bench/statistics.h"
#include "cli/attention_options.h"
#include "pipeline/auto_plan.h"
#include "trace/trace.h"

namespace zoetrope::cli {

struct AttentionMeasurement : bench::AttentionMeasurement {
  int ranks = 1;
  int threads = 1;  // of one rank

  // What was expected; rank 0's. None with keys of their own, where nothing is to be chosen.
  std::optional<pipeline::AutoPlan> planned;

  double seconds_median() const { return bench::median(seconds); }
  double flops() const { return flop / seconds_median(); }
  double median_peak_flops() const { return bench::median(peak_flops); }
};

// What ranks of one process share, and a rank of an MPI job has for itself.
struct AttentionRun {
  const AttentionOptions& options;
  const bench::AttentionData& data;
  TensorView o;            // [B, Sq, H, D] of q's dtype; a rank writes its own tokens
  TensorView log_sum_exp;  // [B, Sq, H] F32, likewise; empty without log_sum_exp=true
  int threads = 1;         // of one rank
  bool shared = true;      // the ranks are threads of this process: data and o are those of all of them
  trace::Trace* trace = nullptr;
};

// Fills random data, runs once to warm up and then options.repeat times, each between two windows in which the
// machine's peak is measured for as long. Collective.
AttentionMeasurement run_attention(const AttentionRun& run, comm::Communicator& world);

}  // namespace zoetrope::cli
