// Shards, blocks, shares and chunks over every P ≤ 16: they tile without holes and nest as shards.h draws.
#include "parallel/shards.h"

#include <gtest/gtest.h>

#include "zoetrope/context_layout.h"

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
          const IndexRange shard = token_shard(tokens, layout.ranks(), rank);
          EXPECT_EQ(shard.begin, next);
          EXPECT_GE(shard.size(), tokens / layout.ranks());
          EXPECT_LE(shard.size(), tokens / layout.ranks() + 1);
          next = shard.end;
          const IndexRange block = ring_block(tokens, ring, layout.ring_index(rank));
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

TEST(Shards, HeadSharesTileAndNoneIsEmpty) {
  for (int64_t heads = 1; heads <= 40; ++heads) {
    for (int ulysses = 1; ulysses <= 16 && ulysses <= heads; ++ulysses) {
      int64_t next = 0;
      for (int index = 0; index < ulysses; ++index) {
        const IndexRange share = head_share(heads, ulysses, index);
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
