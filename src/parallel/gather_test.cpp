// Programs of a gather hold the properties of all programs, and what is a gather's own.
#include "parallel/gather.h"

#include <gtest/gtest.h>

#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

TEST(Gather, HoldsThePropertiesForEveryNumberOfRanks) {
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (const int64_t tokens : {1, ranks - 1, ranks, ranks + 1, 3 * ranks + 2})
      for (const int64_t heads : {1, 5})
        for (const Softmax softmax : kSoftmaxes) {
          Sizes sizes{2, tokens, heads, 8, 2};
          sizes.log_sum_exp = tokens % 2 == 1;
          if (heads > 1) sizes.kv_vector_bytes = 12;
          for (const ContextLayout& layout : in_shards({.gather = ranks})) {
            const Programs programs = make_programs(sizes, layout, softmax);
            SCOPED_TRACE(fmt::format("{}, {} tokens, {} heads", text(layout, softmax), tokens, heads));
            ASSERT_EQ(anything_wrong(programs, sizes, layout, /*gathers=*/false), "");
            for (int rank = 0; rank < ranks; ++rank) {
              // One block of all keys in the order of the sequence, for the own queries.
              const AttentionProgram& program = programs[static_cast<size_t>(rank)];
              EXPECT_EQ(program.block.size(), token_shard(tokens, layout, rank).size());
              ASSERT_EQ(program.blocks.size(), program.block.empty() ? 0u : 1u);
              for (const KeyBlock& block : program.blocks) EXPECT_EQ(block.keys.size(), tokens);
            }
          }
        }
}

// Messages of a moment go to different ranks: each begins with its right neighbour.
TEST(Gather, PostsToTheNextRankFirst) {
  const Programs programs = make_programs({1, 9, 2, 8, 4}, {.gather = 4}, Softmax::kOnline);
  for (int rank = 0; rank < 4; ++rank) {
    const AttentionProgram& program = programs[static_cast<size_t>(rank)];
    ASSERT_EQ(program.transfers.size(), 1u);
    const Transfer& gather = program.transfers[0];
    ASSERT_EQ(program.sends(gather).size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(program.sends(gather)[static_cast<size_t>(i)].peer, (rank + 1 + i) % 4);
      EXPECT_EQ(program.receives(gather)[static_cast<size_t>(i)].peer, (rank + 1 + i) % 4);
    }
  }
}

}  // namespace
}  // namespace zoetrope::parallel
