// The groups of a context hold the ranks they should.
#include "attention/context_axis.h"

#include <gtest/gtest.h>

namespace zoetrope::attention {
namespace {

TEST(ContextAxis, UlyssesGroupsAreNeighboursAndRingsCrossThem) {
  comm::run_ranks(6, [](comm::Communicator& world) {
    for (const parallel::ContextLayout& layout : {parallel::ContextLayout{1, 6}, {2, 3}, {3, 2}, {6, 1}}) {
      const ContextAxis axis(world, layout);
      const int ring_index = layout.ring_index(world.rank()), ulysses_index = layout.ulysses_index(world.rank());
      EXPECT_EQ(layout.rank_of(ring_index, ulysses_index), world.rank());
      if (layout.ulysses > 1) {
        ASSERT_EQ(axis.ulysses_group().size(), layout.ulysses);
        EXPECT_EQ(axis.ulysses_group().rank(), ulysses_index);
        for (int u = 0; u < layout.ulysses; ++u)
          EXPECT_EQ(axis.ulysses_group().world_rank(u), ring_index * layout.ulysses + u);
      }
      if (layout.ring > 1) {
        ASSERT_EQ(axis.ring_group().size(), layout.ring);
        EXPECT_EQ(axis.ring_group().rank(), ring_index);
        for (int r = 0; r < layout.ring; ++r)
          EXPECT_EQ(axis.ring_group().world_rank(r), r * layout.ulysses + ulysses_index);
      }
    }
  });
}

}  // namespace
}  // namespace zoetrope::attention
