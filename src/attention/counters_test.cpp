#include "attention/counters.h"

#include <gtest/gtest.h>

namespace zoetrope::attention {
namespace {

TEST(Counters, RanksAddUpAndTheLargestErrorStays) {
  comm::run_ranks(3, [](comm::Communicator& world) {
    const int rank = world.rank();
    Counters mine;
    mine.ulysses = {.bytes_sent = 1, .bytes_received = 2, .wait_seconds = 0.5};
    mine.ring.bytes_sent = 10 * rank;
    mine.gather.wait_seconds = rank;
    mine.tiles_online = 7;
    mine.heads_int8 = rank;
    mine.key_rounding = rank == 1 ? 0.25 : 0.125;
    mine.int8_error = rank == 0 ? 0.5 : 0;
    const Counters all = sum_over_ranks(world, mine);
    EXPECT_EQ(traffic(all).bytes_sent, 3 + 30);
    EXPECT_EQ(traffic(all).bytes_received, 6);
    EXPECT_EQ(traffic(all).wait_seconds, 1.5 + 3);
    EXPECT_EQ(all.tiles_online, 21);
    EXPECT_EQ(all.heads_int8, 3);
    EXPECT_EQ(all.key_rounding, 0.25);
    EXPECT_EQ(all.int8_error, 0.5);
  });
}

}  // namespace
}  // namespace zoetrope::attention
