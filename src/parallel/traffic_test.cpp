// The sums against closed formulas, for even and uneven sizes.
#include "parallel/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/ring.h"
#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

Traffic sums(const Sizes& sizes, const ContextLayout& layout, int rank, Softmax softmax = Softmax::kOnline) {
  return traffic(attention_program(sizes, layout, softmax, rank));
}

template <typename Body>
void sweep(Body&& body) {
  for (int ulysses = 1; ulysses <= 16; ++ulysses)
    for (int ring = 1; ulysses * ring <= 16; ++ring)
      for (const int64_t tokens : {1, 5, 16, 17, 97})
        for (const int64_t heads : {ulysses, 2 * ulysses - 1})
          for (const ContextLayout& layout : in_shards({ulysses, ring})) body(Sizes{2, tokens, heads, 8, 2}, layout);
}

// Per rank: its q, k, v of the heads it does not own go out; of its group's other tokens, its own heads come back.
TEST(Traffic, ExchangePerRank) {
  sweep([](const Sizes& s, const ContextLayout& layout) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const int64_t own = token_shard(s.tokens, layout, rank).size();
      const int64_t group = ring_block(s.tokens, layout, layout.ring_index(rank)).size();
      const int64_t mine = head_share(s.heads, layout, layout.ulysses_index(rank)).size();
      const int64_t row = s.batch * s.head_dim * s.element_bytes;
      for (const int chunks : {1, 2, 5}) {
        ContextLayout in_chunks = layout;
        in_chunks.head_chunks = chunks;
        const Traffic t = sums(s, in_chunks, rank);
        EXPECT_EQ(t.exchange_sent, 3 * own * (s.heads - mine) * row);
        EXPECT_EQ(t.exchange_received, 3 * (group - own) * mine * row);
        EXPECT_EQ(t.output_sent, (group - own) * mine * row);
        EXPECT_EQ(t.output_received, own * (s.heads - mine) * row);
      }
    }
  });
}

// Over all ranks every block is sent R−1 times, whatever the direction; a rank receives all blocks but its own.
TEST(Traffic, RingPerRankAndInAll) {
  sweep([](const Sizes& s, const ContextLayout& layout) {
    for (const Direction direction : kDirections) {
      int64_t sent = 0;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        ContextLayout directed = layout;
        directed.direction = direction;
        const Traffic t = sums(s, directed, rank);
        const int64_t mine = head_share(s.heads, layout, layout.ulysses_index(rank)).size();
        const int64_t block = ring_block(s.tokens, layout, layout.ring_index(rank)).size();
        EXPECT_EQ(t.ring_received, 2 * s.batch * (s.tokens - block) * mine * s.head_dim * s.element_bytes);
        sent += t.ring_sent;
      }
      EXPECT_EQ(sent, (layout.ring - 1) * 2 * s.batch * s.tokens * s.heads * s.head_dim * s.element_bytes);
    }
  });
}

// A gather receives what a ring receives: the keys and values of all but the own tokens, where there are queries.
TEST(Traffic, GatherPerRankAndInAll) {
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (const int64_t tokens : {1, 5, 16, 17, 97}) {
      const Sizes sizes{2, tokens, 3, 8, 2};
      const int64_t token = 2 * sizes.batch * sizes.heads * sizes.head_dim * sizes.element_bytes;
      int64_t sent = 0, received = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Traffic t = sums(sizes, {.gather = ranks}, rank, Softmax::kFixedMax);
        const int64_t own = token_shard(tokens, {.gather = ranks}, rank).size();
        EXPECT_EQ(t.gather_received, own == 0 ? 0 : (tokens - own) * token);
        EXPECT_EQ(t.gather_sent, own * token * (std::min<int64_t>(ranks, tokens) - 1));
        EXPECT_EQ(t.packed, own * token);
        EXPECT_EQ(t.sent(), t.gather_sent);
        sent += t.sent();
        received += t.received();
      }
      EXPECT_EQ(sent, received);
    }
}

// Ranks with keys tell each other about them; what one rank sends, others receive.
TEST(Traffic, StatisticsPerRankAndInAll) {
  sweep([](const Sizes& s, const ContextLayout& layout) {
    int64_t sent = 0, received = 0;
    const auto with_keys = static_cast<int64_t>(statistics_ranks(s.tokens, layout).size());
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Traffic none = sums(s, layout, rank);
      EXPECT_EQ(none.statistics_sent + none.statistics_received, 0);
      ContextLayout in_chunks = layout;
      in_chunks.head_chunks = 3;
      const Traffic t = sums(s, in_chunks, rank, Softmax::kFixedMax);
      const int64_t mine = head_share(s.heads, layout, layout.ulysses_index(rank)).size();
      const bool has_keys = !ring_block(s.tokens, layout, layout.ring_index(rank)).empty();
      EXPECT_EQ(t.statistics_sent, has_keys ? (with_keys - 1) * s.batch * mine * (3 + s.head_dim) * 4 : 0);
      EXPECT_EQ(t.sent(), none.sent() + t.statistics_sent);
      EXPECT_EQ(t.received(), none.received() + t.statistics_received);
      sent += t.statistics_sent;
      received += t.statistics_received;
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent, with_keys * (with_keys - 1) * s.batch * s.heads * (3 + s.head_dim) * 4);
  });
}

// Wan 14B at S = 32 760 on 2 × 2 ranks in bf16: the numbers a reader can check by hand. A rank owns 8 190 tokens, half
// of 40 heads of 128 leave, and one K/V block of 16 380 tokens × 20 heads goes round.
TEST(Traffic, ByHand) {
  const Sizes sizes{1, 32760, 40, 128, 2};
  const Traffic t = sums(sizes, {2, 2}, 0);
  EXPECT_EQ(t.exchange_sent, int64_t{3} * 8190 * 20 * 128 * 2);
  EXPECT_EQ(t.ring_sent, int64_t{2} * 16380 * 20 * 128 * 2);
  EXPECT_EQ(t.output_sent, int64_t{8190} * 20 * 128 * 2);
  EXPECT_EQ(t.packed, int64_t{3} * 8190 * 40 * 128 * 2);
  EXPECT_EQ(t.unpacked, int64_t{8190} * 40 * 128 * 2);
  EXPECT_EQ(t.sent(), t.exchange_sent + t.ring_sent + t.output_sent);
}

// Guidance as a batch of two costs twice a batch of one, exactly.
TEST(Traffic, BatchTwoIsTwiceBatchOne) {
  for (const ContextLayout& layout : {ContextLayout{2, 3}, {3, 2}, {6, 1}, {1, 6}}) {
    for (int rank = 0; rank < 6; ++rank) {
      const Traffic one = sums({1, 101, 7, 8, 4}, layout, rank);
      const Traffic two = sums({2, 101, 7, 8, 4}, layout, rank);
      EXPECT_EQ(two.sent(), 2 * one.sent());
      EXPECT_EQ(two.received(), 2 * one.received());
      EXPECT_EQ(two.packed, 2 * one.packed);
      EXPECT_EQ(two.unpacked, 2 * one.unpacked);
    }
  }
}

// An int8 key of 128 values, with four scales, takes 144 bytes instead of 512; q and o take what they took. No key is
// packed: it is narrowed from where it is.
TEST(Traffic, NarrowedKeysByHand) {
  Sizes sizes{1, 32760, 40, 128, 4};
  sizes.kv_vector_bytes = 144;
  const Traffic t = sums(sizes, {2, 2}, 0);
  EXPECT_EQ(t.exchange_sent, int64_t{8190} * 20 * (128 * 4 + 2 * 144));
  EXPECT_EQ(t.ring_sent, int64_t{2} * 16380 * 20 * 144);
  EXPECT_EQ(t.output_sent, int64_t{8190} * 20 * 128 * 4);
  EXPECT_EQ(t.packed, int64_t{8190} * 40 * 128 * 4);
  EXPECT_EQ(sums(sizes, {.gather = 4}, 0).gather_sent, int64_t{3} * 8190 * 2 * 40 * 144);
  EXPECT_EQ(sums(sizes, {.gather = 4}, 0).packed, 0);
}

TEST(Traffic, OneRankMovesAndCopiesNothing) {
  const Traffic t = sums({1, 100, 4, 64, 4}, {1, 1}, 0);
  EXPECT_EQ(t.sent() + t.received() + t.packed + t.unpacked, 0);
}

}  // namespace
}  // namespace zoetrope::parallel
