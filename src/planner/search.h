// Which configuration: every legal one is priced in time and memory, and ranked. What is illegal or does not fit stays
// in the list with its reason.
//
// Every split (data × Ulysses × ring), of many ranks those whose bound leaves a chance, is simulated with its fastest
// kernel (softmax and tile), one head chunk and a forward ring. From its breakdown follows a bound for its directions
// and head chunks (search_space.h). What cannot come within the model's error of the fastest even so is left out, and
// counted; all others are simulated. Kernels change the tiles alone: the others are tried where they would make the
// fastest, or one tied with it, simpler.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory_model.h"
#include "planner/simulator.h"

namespace zoetrope::planner {

enum class Objective : uint8_t {
  kLatency,     // seconds of a video, over all ranks
  kThroughput,  // videos an hour of all ranks: one run over all of them, or independent ones over equal parts
  kCost,        // price of a video (price_per_hour) over all ranks or an equal part; without a price device-seconds
};
const char* objective_name(Objective objective);  // "latency", "throughput", "cost"

struct Question {
  Work work;
  HardwareProfile hardware;
  int ranks = 1;
  int ranks_here = 1;               // that share a process, and its weights
  bool sharded = true;              // false: every rank computes all tokens of its branches (flash_min_seq_length)
  parallel::LayoutRequest request;  // what is unset is searched
  std::optional<parallel::Softmax> softmax;  // the same
  std::optional<int64_t> block_q, block_kv;  // the first unset: searched; the second: the profile's
  Objective objective = Objective::kLatency;
  std::optional<Bytes> memory_limit;  // of a rank's device; unset: the profile's
  // The memory of a layout: the workload that the model family makes of it. How a context is split into Ulysses and
  // ring, head chunks, direction and softmax may change nothing in it but its own `layout`: it is asked once for all of
  // these.
  std::function<Workload(const parallel::ParallelLayout&, int ranks_here)> memory;

  Bytes limit() const { return memory_limit.value_or(hardware.device_memory); }
};

enum class Verdict : uint8_t { kBest, kTie, kSlower, kDoesNotFit, kIllegal };
const char* verdict_name(Verdict verdict);  // "best", "tie", "slower", "does_not_fit", "illegal"

struct Candidate {
  Configuration configuration;
  int ranks_here = 1;  // that share a process
  Verdict verdict = Verdict::kSlower;
  std::string reason;     // one line: "7.1 % slower: exchange over 'node' 12 %", "needs 93.1 GB, 13.1 GB more than …"
  bool simulated = true;  // false: `time` is a bound, see search_space.h
  RunPrediction time;     // of legal ones
  MemoryPlan memory;      // of one process: all ranks that share it
  Bytes bytes_per_rank;
  // Of the objective, smaller is better: seconds of a video, seconds between videos, or its price (device-seconds).
  // Loading is not in it: it is the same for all, and done once for many videos.
  double value = 0;
  int complexity = 0;  // settings that are not the plain ones, Configuration::complexity()

  int ranks() const { return configuration.layout.ranks(); }
  double video_seconds() const { return time.total() - time.load; }
};

// What a run of `ranks` ranks that takes `seconds` counts under the question's objective, see Candidate::value.
double objective_value(const Question& question, double seconds, int ranks);

// Times closer than this, relative, are no difference: twice what lies between Ulysses and the ring in one memory with
// thousands of tokens (0.1 to 0.2 % predicted), and little beside what the model is off by.
inline constexpr double kNoDifference = 0.003;

struct Ranking {
  std::vector<Candidate> candidates;  // best first; then ties, slower, what does not fit, what is illegal
  int64_t left_out = 0;               // legal combinations whose bound is beyond the model's error of the fastest
  // The one of least value; in one memory (a bus) the longest ring of the simplest within kNoDifference of it. Null
  // where nothing fits.
  const Candidate* best() const;
  // What may be preferred to the best, as it is tied with it: the fastest of the simplest configurations; and, where
  // several runs go side by side, the one whose run is over first. Null where there is none.
  const Candidate* simpler() const;
  const Candidate* sooner() const;
  // Where nothing fits: the least hardware that would, "16 of these devices (31.2 GB each), or 8 of 34.1 GB or more
  // each".
  std::string least_that_fits;
};

// Question::memory that asks once for all layouts that differ in nothing it depends on: making a workload costs as much
// as simulating a step. For one question, whatever its hardware.
std::function<Workload(const parallel::ParallelLayout&, int)> remembered(
    std::function<Workload(const parallel::ParallelLayout&, int)> memory);

// Throws Error where the request leaves nothing legal, with the legal values, and where the profile has fewer devices
// than there are ranks.
Ranking search(const Question& question);

}  // namespace zoetrope::planner
