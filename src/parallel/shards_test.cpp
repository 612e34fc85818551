// Shards, blocks, shares and chunks over every P ≤ 16: they tile without holes and nest as shards.h draws.
#include "parallel/shards.h"

#include <gtest/gtest.h>

#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

constexpr int64_t kTokens[] = {1, 2, 3, 5, 7, 15, 16, 17, 31, 100, 32760};

TEST(Shards, TileTheSequenceAndJoinToRingBlocks) {
  for (const int64_t tokens : kTokens) {
    for (int ulysses = 1; ulysses <= 16; ++ulysses) {
      for (int ring = 1; ulysses * ring <= 16; ++ring) {
        const ContextLayout layout{ulysses, ring};
        int64_t next = 0;
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          const IndexRange shard = token_shard(tokens, layout, rank);
          EXPECT_EQ(shard.begin, next);
          EXPECT_GE(shard.size(), tokens / layout.ranks());
          EXPECT_LE(shard.size(), tokens / layout.ranks() + 1);
          next = shard.end;
          const IndexRange block = ring_block(tokens, layout, layout.ring_index(rank));
          if (layout.ulysses_index(rank) == 0) {
            EXPECT_EQ(shard.begin, block.begin);
          }
          if (layout.ulysses_index(rank) == ulysses - 1) {
            EXPECT_EQ(shard.end, block.end);
          }
          EXPECT_EQ(layout.rank_of(layout.ring_index(rank), layout.ulysses_index(rank)), rank);
        }
        EXPECT_EQ(next, tokens);
      }
    }
  }
}

TEST(Shards, WithWeightsTileTheSequenceAndJoinToRingBlocks) {
  for (const int64_t tokens : kTokens)
    for (int ulysses = 1; ulysses <= 16; ++ulysses)
      for (int ring = 1; ulysses * ring <= 16; ++ring)
        for (const ContextLayout& layout : in_shards({ulysses, ring})) {
          const auto all = static_cast<double>(weight_of(layout, 0, layout.ranks()));
          int64_t next = 0, most = 0;
          for (int rank = 0; rank < layout.ranks(); ++rank) {
            const IndexRange shard = token_shard(tokens, layout, rank);
            EXPECT_EQ(shard.begin, next);
            const double wanted = static_cast<double>(tokens) * layout.shard_weight(rank) / all;
            EXPECT_NEAR(static_cast<double>(shard.size()), wanted, 1);
            next = shard.end;
            most = std::max(most, shard.size());
            const IndexRange block = ring_block(tokens, layout, layout.ring_index(rank));
            if (layout.ulysses_index(rank) == 0) {
              EXPECT_EQ(shard.begin, block.begin);
            }
            if (layout.ulysses_index(rank) == ulysses - 1) {
              EXPECT_EQ(shard.end, block.end);
            }
          }
          EXPECT_EQ(next, tokens);
          EXPECT_EQ(largest_token_shard(tokens, layout), most);
        }
}

// The largest share in relation to its weight is as small as any division makes it, and none is empty.
TEST(Shards, HeadSharesFollowTheWeights) {
  const auto sizes = [](int64_t heads, const ContextLayout& layout) {
    std::vector<int64_t> shares;
    int64_t next = 0;
    for (int index = 0; index < layout.ulysses; ++index) {
      const IndexRange share = head_share(heads, layout, index);
      EXPECT_EQ(share.begin, next);
      next = share.end;
      shares.push_back(share.size());
    }
    EXPECT_EQ(next, heads);
    return shares;
  };
  using Heads = std::vector<int64_t>;
  EXPECT_EQ(sizes(12, {.ulysses = 2, .shard_weights = {2, 1}}), (Heads{8, 4}));
  EXPECT_EQ(sizes(12, {.ulysses = 3, .shard_weights = {2, 1, 2}}), (Heads{5, 2, 5}));
  EXPECT_EQ(sizes(12, {.ulysses = 2, .shard_weights = {1, 1000}}), (Heads{1, 11}));
  EXPECT_EQ(sizes(3, {.ulysses = 3, .shard_weights = {9, 1, 1}}), (Heads{1, 1, 1}));
  // Of two rings: 1 + 3 and 2 + 2.
  EXPECT_EQ(sizes(8, {.ulysses = 2, .ring = 2, .shard_weights = {1, 2, 3, 2}}), (Heads{4, 4}));
  EXPECT_EQ(sizes(12, {.ulysses = 2, .ring = 2, .shard_weights = {2, 1, 2, 1}}), (Heads{8, 4}));
}

TEST(Shards, HeadSharesTileAndNoneIsEmpty) {
  for (int64_t heads = 1; heads <= 40; ++heads) {
    for (int ulysses = 1; ulysses <= 16 && ulysses <= heads; ++ulysses) {
      int64_t next = 0;
      for (int index = 0; index < ulysses; ++index) {
        const IndexRange share = head_share(heads, {.ulysses = ulysses}, index);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.size(), 1);
        next = share.end;
      }
      EXPECT_EQ(next, heads);
    }
  }
}

TEST(Shards, ChunksTileTheShareAndOnlyTrailingOnesAreEmpty) {
  for (int64_t size = 0; size <= 9; ++size) {
    for (int chunks = 1; chunks <= 12; ++chunks) {
      int64_t next = 3;
      bool empty = false;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const IndexRange heads = head_chunk({3, 3 + size}, chunks, chunk);
        EXPECT_EQ(heads.begin, next);
        next = heads.end;
        EXPECT_FALSE(empty && !heads.empty());
        empty = heads.empty();
      }
      EXPECT_EQ(next, 3 + size);
    }
  }
}

}  // namespace
}  // namespace zoetrope::parallel
