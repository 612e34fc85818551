// What must not change a bit: how many ranks share the heads, how many threads a rank has, in how many chunks the heads
// go, and what carries the messages. (How many ring blocks there are does: it is another order of summation.)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>

#include "attention_case.h"

namespace zoetrope::attention::testing {
namespace {

struct Spread {
  int ulysses, threads, chunks;
};

// Every U with every thread count, and every U with every number of chunks; of these one U has heads enough for three
// and one has not.
std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (int ulysses = 1; ulysses <= 4; ++ulysses) {
    for (const int threads : {1, 2, 3}) all.push_back({ulysses, threads, 1});
    for (const int chunks : {2, 3}) all.push_back({ulysses, 2, chunks});
  }
  return all;
}

void expect_same_bits(DType dtype, Softmax softmax) {
  // Seven heads divide by none of 2, 3, 4. Each ring block has rows for two query tiles and a rest.
  Case whole({1, 331, 7, 40, dtype}, 5);
  whole.set_key_lengths({300});
  for (const int ring : {1, 2, 3}) {
    Strategy strategy{.layout = {.ulysses = 1, .ring = ring}, .softmax = softmax, .deterministic = true};
    const Tensor expected = run_threads(whole, strategy, 1);
    for (const Spread& spread : spreads()) {
      strategy.layout.ulysses = spread.ulysses;
      strategy.layout.head_chunks = spread.chunks;
      EXPECT_TRUE(same_bits(run_threads(whole, strategy, spread.threads), expected)) << fmt::format(
          "U{} R{} with {} threads and {} head chunks", spread.ulysses, ring, spread.threads, spread.chunks);
    }
  }
}

TEST(Deterministic, OnlineF32) { expect_same_bits(DType::kF32, Softmax::kOnline); }
TEST(Deterministic, OnlineBF16) { expect_same_bits(DType::kBF16, Softmax::kOnline); }
TEST(Deterministic, FixedMaxF32) { expect_same_bits(DType::kF32, Softmax::kFixedMax); }
TEST(Deterministic, FixedMaxBF16) { expect_same_bits(DType::kBF16, Softmax::kFixedMax); }

// In a gather every rank has all keys in the order of the sequence, as one rank has.
void expect_same_bits_of_a_gather(DType dtype, Softmax softmax) {
  Case whole({1, 331, 3, 40, dtype}, 6);
  whole.set_key_lengths({300});
  Strategy strategy{.layout = {.ulysses = 1, .ring = 1}, .softmax = softmax, .deterministic = true};
  const Tensor expected = run_threads(whole, strategy, 1);
  for (const int ranks : {2, 3, 4, 7})
    for (const int threads : {1, 2}) {
      strategy.layout = {.ulysses = 1, .ring = 1, .gather = ranks};
      EXPECT_TRUE(same_bits(run_threads(whole, strategy, threads), expected)) << ranks << " ranks";
    }
}

TEST(Deterministic, GatherOnlineF32) { expect_same_bits_of_a_gather(DType::kF32, Softmax::kOnline); }
TEST(Deterministic, GatherOnlineBF16) { expect_same_bits_of_a_gather(DType::kBF16, Softmax::kOnline); }
TEST(Deterministic, GatherFixedMaxF32) { expect_same_bits_of_a_gather(DType::kF32, Softmax::kFixedMax); }
TEST(Deterministic, GatherFixedMaxBF16) { expect_same_bits_of_a_gather(DType::kBF16, Softmax::kFixedMax); }

// In cross-attention every rank has all keys, whatever the layout.
void expect_same_bits_of_cross_attention(DType dtype) {
  const Case whole({.tokens = 331, .heads = 4, .head_dim = 40, .dtype = dtype, .key_tokens = 77}, 8);
  Strategy strategy{.layout = {.ulysses = 1, .ring = 1}, .deterministic = true};
  const Tensor expected = run_threads(whole, strategy, 1);
  for (const auto& [ulysses, ring, gather] : {std::tuple(3, 1, 1), {4, 2, 1}, {1, 3, 1}, {1, 1, 5}}) {
    strategy.layout = {.ulysses = ulysses, .ring = ring, .gather = gather};
    EXPECT_TRUE(same_bits(run_threads(whole, strategy, 2), expected)) << fmt::format("{} {} {}", ulysses, ring, gather);
  }
}

TEST(Deterministic, CrossAttentionOnlineF32) { expect_same_bits_of_cross_attention(DType::kF32); }
TEST(Deterministic, CrossAttentionOnlineBF16) { expect_same_bits_of_cross_attention(DType::kBF16); }

// The same ranks as threads of this process: under mpirun that is another transport.
void run_transport(comm::Communicator& comm, int ulysses, int ring) {
  const Case whole({1, 61, 2 * int64_t{ulysses} - 1, 16, DType::kBF16}, 9);
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
    // Deterministic, so that a tile search that runs during the tests and remembers what it finds does not matter.
    const Strategy strategy{
        .layout = {.ulysses = ulysses, .ring = ring, .head_chunks = 2}, .softmax = softmax, .deterministic = true};
    const Tensor expected = run_threads(whole, strategy, 1);
    ContextAttention attention = plan(whole.problem, strategy, comm, 1);
    const IndexRange own = attention.tokens();
    Shard shard(whole, own);
    attention.run(shard.q, shard.k, shard.v, {}, shard.o);
    EXPECT_TRUE(same_bits(shard.o, expected.view().slice(1, own.begin, own.end)));
  }
}

const bool kRegistered = register_layouts("SameBitsOnAnyTransport", {2, 3, 4, 6}, run_transport);

}  // namespace
}  // namespace zoetrope::attention::testing
