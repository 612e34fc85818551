// Degrees, coordinates, refusals, and that the groups of an axis hold the ranks they should.
#include "mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/test_folder.h"
#include "mesh/context_axis.h"
#include "parallel/shards.h"

namespace zoetrope::mesh {
namespace {

using ::testing::HasSubstr;

TEST(Degrees, MinusOneIsWhatIsLeft) {
  const Degrees all = resolve_degrees({}, 6);
  EXPECT_EQ(all.context, 6);
  EXPECT_EQ(all.data, 1);
  EXPECT_EQ(resolve_degrees({.data = 2}, 8).context, 4);
  EXPECT_EQ(resolve_degrees({.data = -1, .context = 3}, 6).data, 2);
}

TEST(Degrees, RefusalsSayWhatIsWrong) {
  const auto refusal = [](const Degrees& degrees, int ranks) {
    return error_of([&] { resolve_degrees(degrees, ranks); });
  };
  EXPECT_THAT(refusal({.data = 2, .context = 3}, 8), HasSubstr("make 6 ranks, but there are 8"));
  EXPECT_THAT(refusal({.data = 3, .context = -1}, 8), HasSubstr("8 ranks do not divide by the product 3"));
  EXPECT_THAT(refusal({.data = -1, .context = -1}, 8), HasSubstr("data_parallelism and context_parallelism"));
  EXPECT_THAT(refusal({.data = 0}, 8), HasSubstr("data_parallelism=0 is not a degree"));
  EXPECT_THAT(refusal({.context = -3}, 8), HasSubstr("context_parallelism=-3 is not a degree"));
  EXPECT_THAT(refusal({.fsdp = 2}, 8), HasSubstr("fsdp_parallelism=2 is not built yet"));
  EXPECT_THAT(refusal({.tensor = 2}, 8), HasSubstr("tensor_parallelism=2 is not built yet"));
}

// Every rank has coordinates of its own, and neighbours in rank are neighbours on the context axis.
TEST(Coordinates, AreABijectionWithContextFast) {
  const Degrees degrees{.data = 2, .fsdp = 1, .context = 3, .tensor = 1};
  std::set<std::pair<int, int>> seen;
  for (int rank = 0; rank < 6; ++rank) {
    const Coordinates at = coordinates(degrees, rank);
    EXPECT_EQ(at.data * 3 + at.context, rank);
    seen.insert({at.data, at.context});
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST(Ulysses, LegalValuesAreTheDivisorsNotAboveTheHeads) {
  EXPECT_EQ(parallel::legal_ulysses(12, 40), (std::vector<int>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(parallel::legal_ulysses(12, 5), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(default_ulysses(16, 12), 8);
  EXPECT_EQ(default_ulysses(7, 3), 1);
  EXPECT_THAT(error_of([] { check_ulysses(3, 4, 40); }),
              HasSubstr("does not divide the context degree 4; legal values: 1, 2, 4"));
  EXPECT_THAT(error_of([] { check_ulysses(8, 8, 6); }), HasSubstr("more than the 6 heads"));
  EXPECT_THAT(error_of([] { check_ulysses(8, 8, 6); }), HasSubstr("legal values: 1, 2, 4"));
  EXPECT_THAT(error_of([] { check_ulysses(0, 4, 6); }), HasSubstr("must be at least 1"));
  EXPECT_EQ(error_of([] { check_ulysses(4, 8, 6); }), "no error");
}

// The world ranks of a communicator, in its order.
std::vector<int> members(const comm::Communicator& communicator) {
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) ranks.push_back(communicator.world_rank(rank));
  return ranks;
}

TEST(Mesh, AxesHoldTheRanksThatDifferInOneCoordinate) {
  comm::run_ranks(6, [](comm::Communicator& world) {
    const Mesh mesh(world, {.data = 2});
    const int first = world.rank() / 3 * 3;
    EXPECT_EQ(members(mesh.context()), (std::vector<int>{first, first + 1, first + 2}));
    EXPECT_EQ(mesh.context().rank(), mesh.here().context);
    EXPECT_EQ(members(mesh.data()), (std::vector<int>{world.rank() % 3, world.rank() % 3 + 3}));
    EXPECT_EQ(mesh.data().rank(), mesh.here().data);
  });
}

TEST(ContextAxis, UlyssesGroupsAreNeighboursAndRingsCrossThem) {
  comm::run_ranks(6, [](comm::Communicator& world) {
    for (const int ulysses : {1, 2, 3, 6}) {
      const ContextAxis axis(world, ulysses);
      EXPECT_EQ(axis.ring() * ulysses, 6);
      EXPECT_EQ(axis.ring_index() * ulysses + axis.ulysses_index(), world.rank());
      if (axis.ulysses() > 1) {
        ASSERT_EQ(axis.ulysses_group().size(), ulysses);
        EXPECT_EQ(axis.ulysses_group().rank(), axis.ulysses_index());
        for (int u = 0; u < ulysses; ++u)
          EXPECT_EQ(axis.ulysses_group().world_rank(u), axis.ring_index() * ulysses + u);
      }
      if (axis.ring() > 1) {
        ASSERT_EQ(axis.ring_group().size(), axis.ring());
        EXPECT_EQ(axis.ring_group().rank(), axis.ring_index());
        for (int r = 0; r < axis.ring(); ++r)
          EXPECT_EQ(axis.ring_group().world_rank(r), r * ulysses + axis.ulysses_index());
      }
    }
    EXPECT_THROW(ContextAxis(world, 4), Error);
  });
}

}  // namespace
}  // namespace zoetrope::mesh
