// attention_dtype=int8 over ranks: near the definition for every layout, whose rings multiply blocks of keys with means
// of their own; the same bits where ranks share heads; and what the counters say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention_case.h"
#include "comm/rank_test.h"
#include "parallel/test_program.h"
#include "tensor/half.h"

namespace zoetrope::attention::testing {
namespace {

// Elements are in [-2, 2): a score is as large as 4/3 on average, and rounding moves it by at most √2·2^-7 of that, if
// a row's largest element is at most 3.5 of its size (kernels/flash_attention/int8_attention_test.cpp). So is o. Values
// and weights add 2^-7 each.
const double kRounding = std::sqrt(2 * (4.0 / 3) * (4.0 / 3) + 2) * 0x1p-7;

Case make_case(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim, uint64_t seed) {
  Case whole({batch, tokens, heads, head_dim, DType::kBF16}, seed);
  // A mean that all keys share and one that differs from block to block.
  whole.shift_keys([&](int64_t s, int64_t d) { return (d % 5 == 0 ? 6.0 : 0.0) + (2 * s > tokens ? 0.5 : -0.5); });
  return whole;
}

void expect_near_reference(comm::Communicator& comm, const Case& whole, Strategy strategy) {
  strategy.attention_dtype = AttentionDtype::kInt8;
  ContextAttention attention = plan(whole.problem, strategy, comm, 1);
  const IndexRange own = attention.tokens();
  Shard shard(whole, own);
  attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
  const Tensor reference = whole.reference();
  EXPECT_LE(distance(comm, shard.o, reference.view().slice(1, own.begin, own.end)),
            bound(DType::kBF16) + 2 * kRounding);
  const Counters counters = attention.counters();
  if (whole.problem.tokens > 100) {
    EXPECT_GT(counters.heads_int8, 0);
    EXPECT_GT(counters.int8_error, 1e-3);
  }
  Shard again(whole, own);
  write_slots(attention.input_slots(), again);
  attention.run(whole.mask(), again.o);
  EXPECT_TRUE(same_bits(again.o, shard.o));
}

void run_topology(comm::Communicator& comm, int ulysses, int ring) {
  uint64_t seed = 1;
  for (const auto& [batch, tokens, heads, head_dim] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 167, ulysses + 1, 128},
        {2, 61, ulysses, 40},
        {1, std::max(1, ulysses * ring - 1), ulysses, 16}}) {
    Case whole = make_case(batch, tokens, heads, head_dim, seed++);
    if (batch == 2) whole.set_key_lengths({tokens / 2, tokens});
    for (const Direction direction : parallel::kDirections)
      for (const Softmax softmax : parallel::kSoftmaxes) {
        if (ring == 1 && direction != Direction::kForward) continue;
        SCOPED_TRACE(fmt::format("{} tokens, {}, {}", tokens, direction_name(direction), softmax_name(softmax)));
        expect_near_reference(comm, whole, {.layout = {ulysses, ring, direction, 2}, .softmax = softmax});
      }
  }
}

void run_gather(comm::Communicator& comm) {
  expect_near_reference(comm, make_case(1, 167, 2, 128, 7), {.layout = {.gather = comm.size()}});
}

const bool kRegistered = [] {
  for (const int ranks : {2, 3, 4, 7})
    comm::register_rank_test("Int8Attention", "gather", {ranks}, __FILE__, __LINE__, run_gather);
  return register_layouts("Int8Attention", {1, 2, 3, 4, 7}, run_topology);
}();

// Whoever computes a head has all its queries and keys: the same mean, the same sample, the same bits.
TEST(Int8AttentionOverRanks, SharedHeadsGiveTheSameBits) {
  const Case whole = make_case(1, 331, 7, 40, 5);
  for (const Softmax softmax : parallel::kSoftmaxes) {
    Strategy strategy{.layout = {.ulysses = 1, .ring = 1},
                      .softmax = softmax,
                      .deterministic = true,
                      .attention_dtype = AttentionDtype::kInt8};
    const Tensor expected = run_threads(whole, strategy, 1);
    for (const int ulysses : {2, 3, 7})
      for (const int chunks : {1, 2}) {
        strategy.layout = {.ulysses = ulysses, .ring = 1, .head_chunks = chunks};
        EXPECT_TRUE(same_bits(run_threads(whole, strategy, 2), expected)) << ulysses;
      }
  }
}

// A head that int8 would move too far is as without it, and counted. Here queries are long along an axis that
// keys do not have: every rounding of a key counts a hundred times, and no score grows.
TEST(Int8AttentionOverRanks, CoarseHeadsAreAsComputed) {
  Case whole({1, 300, 3, 64, DType::kBF16}, 3);
  for (int64_t s = 0; s < 300; ++s) {
    whole.q.data<BFloat16>()[(s * 3 + 1) * 64] = to_bfloat16(150);
    whole.k.data<BFloat16>()[(s * 3 + 1) * 64] = to_bfloat16(0);
  }
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    const auto run = [&](AttentionDtype dtype) {
      ContextAttention attention = plan(whole.problem, {.deterministic = true, .attention_dtype = dtype}, comm, 1);
      Shard shard(whole, attention.tokens());
      attention.run(shard.q, shard.k, shard.v, {}, shard.o);
      return std::pair(std::move(shard), attention.counters());
    };
    const auto [int8, counters] = run(AttentionDtype::kInt8);
    const auto [exact, none] = run(AttentionDtype::kAsComputed);
    EXPECT_EQ(counters.heads_int8, 2);
    EXPECT_EQ(counters.heads_as_computed, 1);
    EXPECT_EQ(none.heads_int8 + none.heads_as_computed, 0);
    for (int64_t h = 0; h < 3; ++h)
      EXPECT_EQ(same_bits(int8.o.slice(2, h, h + 1), exact.o.slice(2, h, h + 1)), h == 1) << h;
  });
}

// int8 is of self-attention.
TEST(Int8AttentionOverRanks, CrossAttentionIsAsComputed) {
  const Case whole({.tokens = 300, .heads = 2, .head_dim = 64, .dtype = DType::kBF16, .key_tokens = 128}, 4);
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const auto run = [&](AttentionDtype dtype) {
      ContextAttention attention = plan(whole.problem, {.deterministic = true, .attention_dtype = dtype}, comm, 1);
      Shard shard(whole, attention.tokens());
      attention.run(shard.q, shard.k, shard.v, {}, shard.o);
      EXPECT_EQ(attention.counters().heads_int8, 0);
      return shard;
    };
    const Shard int8 = run(AttentionDtype::kInt8), exact = run(AttentionDtype::kAsComputed);
    EXPECT_TRUE(same_bits(int8.o, exact.o));
  });
}

}  // namespace
}  // namespace zoetrope::attention::testing
