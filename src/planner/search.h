// Prices every legal configuration in time and memory, and ranks them. What is illegal or does not fit stays in the
// list with its reason.
//
// Every split (data × Ulysses × ring, or data × gather) is simulated with its fastest kernel (softmax and tile), one
// head chunk and a forward ring; with many ranks, and of those × tensor, only the splits whose bound is within reach of
// the fastest. The breakdown gives a bound for the split's directions and head chunks (search_space.h). What cannot
// come within the model's error of the fastest is pruned and counted; all others are simulated. Other kernels are tried
// where they would simplify the fastest, or one tied with it.
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
  kThroughput,  // videos per hour of all ranks: one run over all of them, or independent runs over equal parts
  kCost,        // price of a video (price_per_hour) on all ranks or an equal part; without a price device-seconds
};
const char* objective_name(Objective objective);  // "latency", "throughput", "cost"

struct Question {
  Work work;
  HardwareProfile hardware;
  int ranks = 1;
  int ranks_here = 1;               // that share a process, and its weights
  bool sharded = true;              // false: every rank computes all tokens of its branches (flash_min_seq_length)
  parallel::LayoutRequest request;  // unset fields are searched
  bool all_decode = false;          // its vae_ranks are as many as can; so they would be of other numbers of ranks
  std::optional<parallel::Softmax> softmax;  // unset: searched
  std::optional<int64_t> block_q, block_kv;  // unset: the first is searched, the second is the profile's
  Objective objective = Objective::kLatency;
  std::optional<Bytes> memory_limit;  // of a rank's device; unset: the profile's
  // The workload of a layout, from the model family. It may not depend on the split of the context into Ulysses and
  // ring, a gather, head chunks, direction or softmax (but for its own `layout`): it is called once for all of these.
  std::function<Workload(const parallel::ParallelLayout&, int ranks_here)> memory;
  // The same with as few weights in memory as a run can have; empty: it keeps all. For least_that_fits alone.
  std::function<Workload(const parallel::ParallelLayout&, int ranks_here)> least_memory = {};

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
  // The objective; smaller is better: seconds of a video, seconds between videos, or the price of a video
  // (device-seconds). Without loading, which is the same for all and done once for many videos.
  double value = 0;
  int complexity = 0;  // settings that are not the simplest, see Configuration::complexity()

  int ranks() const { return configuration.layout.ranks(); }
  double run_seconds() const { return time.total() - time.load; }  // of all videos of a batch
};

// Candidate::value of a run on `ranks` ranks that takes `seconds`.
double objective_value(const Question& question, double seconds, int ranks);

// Relative: times closer than this count as equal. It is twice the predicted difference between Ulysses and the ring in
// shared memory with thousands of tokens (0.1 to 0.2 %), and small compared with the model's error.
inline constexpr double kNoDifference = 0.003;

struct Ranking {
  std::vector<Candidate> candidates;  // best first, then ties, slower ones, those that do not fit, illegal ones
  int64_t left_out = 0;               // legal combinations that were pruned
  // The one of least value; in shared memory (a bus) the longest ring of the simplest within kNoDifference of it. Null
  // if nothing fits.
  const Candidate* best() const;
  // Alternatives that are tied with the best: the fastest of the simplest configurations; and, where several runs share
  // the machine, the one with the shortest run. Null if there is none.
  const Candidate* simpler() const;
  const Candidate* quickest_run() const;
  // If nothing fits: the least hardware that would, "16 of these devices (31.2 GB each), or 8 of 34.1 GB or more
  // each".
  std::string least_that_fits;
};

// Question::memory with a cache: making a workload costs as much as simulating a step. For one question with any
// hardware. Any thread.
std::function<Workload(const parallel::ParallelLayout&, int)> remembered(
    std::function<Workload(const parallel::ParallelLayout&, int)> memory);

// Throws Error where the request leaves nothing legal, with the legal values, and where the profile has fewer devices
// than there are ranks.
Ranking search(const Question& question);

}  // namespace zoetrope::planner
