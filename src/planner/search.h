// Which configuration: every legal one is priced in time and memory, and ranked. What is illegal or does not fit stays
// in the list with its reason.
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
  kLatency,     // seconds of a video
  kThroughput,  // videos an hour of the machine: one run at a time, or as many independent ones as it holds
  kCost,        // price of a video (price_per_hour); without a price device-seconds
};

// What the user has fixed; unset is searched.
struct Fixed {
  std::optional<int> data, ulysses, head_chunks, vae, text_encoder;
  std::optional<schedule::Direction> direction;
  std::optional<bool> fixed_max;
  std::optional<int64_t> block_q;
};

struct Question {
  Work work;
  HardwareProfile hardware;
  int ranks = 1;
  int ranks_here = 1;  // that share a process, and its weights
  Fixed fixed;
  Objective objective = Objective::kLatency;
  Bytes memory_limit;  // of a rank's device; 0: the profile's
  // The memory of a configuration: the workload that the model family makes of it.
  std::function<Workload(const RankUse&)> memory;
};

enum class Verdict : uint8_t { kBest, kTie, kSlower, kDoesNotFit, kIllegal };
const char* verdict_name(Verdict verdict);  // "best", "tie", "slower", "does_not_fit", "illegal"

struct Candidate {
  Configuration configuration;
  Verdict verdict = Verdict::kSlower;
  std::string reason;  // one line: "7.1 % slower: exchange over 'node' 12 %", "needs 93.1 GB, 13.1 GB more than …"
  RunPrediction time;  // of legal ones
  MemoryPlan memory;
  Bytes bytes_per_rank;
  double value = 0;  // of the objective, smaller is better
};

struct Ranking {
  std::vector<Candidate> candidates;  // best first; then ties, slower, what does not fit, what is illegal
  const Candidate* best() const;      // null where nothing fits
  // Where nothing fits: the least hardware of the same kind that would, "4 devices (31.2 GB each)".
  std::string least_that_fits;
};

// Throws Error where `fixed` leaves nothing legal, with the legal values.
Ranking search(const Question& question);

}  // namespace zoetrope::planner
