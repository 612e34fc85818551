// Ring hops travel under the kernel: hops that are late by less than a block's kernel time are not waited for. So do
// the exchanges of head chunks: that of the next chunk comes, and that of the one before goes, while one is computed.
//
// What is compared are two durations of one run, so the test asks for no speed: a run without delay measures the
// kernel time of a block on the machine as it is, hops are then delayed by half of that, and the time spent waiting
// stays under 20 % of the delay injected. An engine that posts a hop after the kernel, or waits before it, waits for
// all of it. A machine that stops a rank for a while can spoil a run, so the best of a few counts; no luck makes a run
// that does not overlap pass, as the control with delays of four blocks shows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "comm/testing.h"

namespace zoetrope::attention::testing {
namespace {

using Clock = std::chrono::steady_clock;

// The scalar kernel: long blocks from little data, so that copies and start-up do not count. Tries that fail are
// followed by longer blocks, compared with which the pauses of a busy machine (some 10 ms) are short.
constexpr int kTries = 5;  // of the control: it fails where the machine is busier than when the block was timed
constexpr int64_t kBlockTokens[] = {256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 1024};

Case make_case(int64_t block_tokens, int ulysses, int ring) {
  return Case({1, block_tokens * ring, 2 * int64_t{ulysses}, 32, DType::kF32}, 3);
}

// Seconds of one ring step where it is shortest, without delays.
double block_seconds(comm::Communicator& comm, const Case& whole, const Strategy& strategy) {
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  Shard shard(whole, attention.tokens());
  comm.barrier();
  const Clock::time_point begin = Clock::now();
  attention.run(shard.q, shard.k, shard.v, {}, shard.o);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return -comm.all_reduce_max(-seconds) / *strategy.layout.ring;
}

// Time waited for ring hops over time injected, on the rank that waited most.
double wait_fraction(comm::Communicator& comm, const Case& whole, const Strategy& strategy, double delay) {
  comm::DelayedCommunicator late(comm, "ring hop", std::chrono::duration<double>(delay));
  ContextAttention attention = plan(whole.problem, strategy, late, 1);
  Shard shard(whole, attention.tokens());
  comm.barrier();
  attention.run(shard.q, shard.k, shard.v, {}, shard.o);
  const double injected = late.injected_seconds();
  EXPECT_NEAR(injected, delay * (*strategy.layout.ring - 1), 1e-6 * injected);
  return comm.all_reduce_max(attention.counters().ring.wait_seconds) / injected;
}

void run_overlap(comm::Communicator& comm, int ulysses, int ring) {
  const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring}, .kernel = "scalar"};
  double best = 1;
  for (const int64_t tokens : kBlockTokens) {
    const Case whole = make_case(tokens, ulysses, ring);
    const double delay = 0.5 * block_seconds(comm, whole, strategy);
    best = std::min(best, wait_fraction(comm, whole, strategy, delay));
    if (best < 0.2) break;
  }
  EXPECT_LT(best, 0.2) << "of the injected delay was waited for";

  const Case whole = make_case(kBlockTokens[0], ulysses, ring);
  double most = 0;
  for (int i = 0; i < kTries && most <= 0.2; ++i) {
    const double longer = 4 * block_seconds(comm, whole, strategy);
    most = std::max(most, wait_fraction(comm, whole, strategy, longer));
  }
  EXPECT_GT(most, 0.2) << "delays beyond the kernel time must show";
}

// ---- head chunks ----

constexpr int kChunks = 3;
// Where nothing is computed meanwhile: what the first chunk waits for, and what the last one leaves.
enum class Unhidden : uint8_t { kFirst, kLast };

// The longest wait for an exchange that can be hidden, over the delay, on the rank that waited most.
double longest_wait(comm::Communicator& comm, const Case& whole, const Strategy& strategy, const char* exchange,
                    Unhidden unhidden, double delay, bool posted_late) {
  comm::DelayedCommunicator delayed(comm, exchange, std::chrono::duration<double>(delay));
  comm::LateCommunicator late(delayed, exchange);
  ContextAttention attention =
      plan(whole.problem, strategy, posted_late ? static_cast<comm::Communicator&>(late) : delayed, 1);
  Shard shard(whole, attention.tokens());
  comm.barrier();
  attention.run(shard.q, shard.k, shard.v, {}, shard.o);
  std::vector<double> waits = posted_late ? late.waits() : delayed.waits();
  EXPECT_EQ(waits.size(), static_cast<size_t>(kChunks));
  if (!waits.empty()) waits.erase(unhidden == Unhidden::kFirst ? waits.begin() : waits.end() - 1);
  const double longest = waits.empty() ? 0 : *std::max_element(waits.begin(), waits.end());
  return comm.all_reduce_max(longest) / delay;
}

void run_chunk_overlap(comm::Communicator& comm, int ulysses, int ring, const char* exchange, Unhidden unhidden) {
  const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring, .head_chunks = kChunks}, .kernel = "scalar"};
  double best = 1;
  Problem problem{1, 0, kChunks * int64_t{ulysses}, 32, DType::kF32};
  for (const int64_t tokens : kBlockTokens) {
    problem.tokens = tokens * comm.size();
    const Case whole(problem, 3);
    const double chunk_seconds = block_seconds(comm, whole, strategy) * ring / kChunks;
    best = std::min(best, longest_wait(comm, whole, strategy, exchange, unhidden, 0.5 * chunk_seconds, false));
    if (best < 0.2) break;
  }
  EXPECT_LT(best, 0.2) << "of the delay was waited for";

  problem.tokens = kBlockTokens[0] * comm.size();
  const Case whole(problem, 3);
  const double delay = 0.5 * block_seconds(comm, whole, strategy) * ring / kChunks;
  EXPECT_GE(longest_wait(comm, whole, strategy, exchange, unhidden, delay, true), 1)
      << "an exchange that is posted after the compute must show";
}

const bool kRegistered = [] {
  struct Grid {
    int ulysses, ring;
  };
  for (const Grid grid : {Grid{1, 2}, Grid{1, 3}, Grid{1, 4}, Grid{2, 2}}) {
    comm::register_rank_test("Overlap", fmt::format("U{}R{}", grid.ulysses, grid.ring), {grid.ulysses * grid.ring},
                             __FILE__, __LINE__,
                             [=](comm::Communicator& comm) { run_overlap(comm, grid.ulysses, grid.ring); });
  }
  for (const Grid grid : {Grid{2, 1}, Grid{3, 1}, Grid{2, 2}}) {
    for (const auto& [name, exchange, unhidden] : {std::tuple("Exchange", "ulysses exchange", Unhidden::kFirst),
                                                   std::tuple("Return", "ulysses output exchange", Unhidden::kLast)}) {
      comm::register_rank_test("ChunkOverlap", fmt::format("{}U{}R{}", name, grid.ulysses, grid.ring),
                               {grid.ulysses * grid.ring}, __FILE__, __LINE__,
                               [=, on = exchange, at = unhidden](comm::Communicator& comm) {
                                 run_chunk_overlap(comm, grid.ulysses, grid.ring, on, at);
                               });
    }
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope::attention::testing
