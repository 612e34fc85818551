// Who is named when a wait has passed its deadline, from plain numbers.
#include "comm/stall.h"

#include <gtest/gtest.h>

namespace zoetrope::comm {
namespace {

RankState state(int rank, Activity::Kind kind, double seconds, int peer = -1) {
  RankState made;
  made.rank = rank;
  made.host = "node" + std::to_string(rank);
  made.activity.kind = kind;
  made.activity.peer = peer;
  made.activity.bytes = peer >= 0 ? 4096 : 0;
  made.activity.seconds = seconds;
  made.activity.set_operation("ring hop");
  made.activity.set_step("step 3");
  return made;
}
RankState waits(int rank, int peer) { return state(rank, Activity::Kind::kWaits, 10, peer); }
RankState computes(int rank, double seconds) { return state(rank, Activity::Kind::kComputes, seconds); }

using Ranks = std::vector<RankState>;
using Numbers = std::vector<int>;

TEST(Stall, NamesTheEndOfTheChainOfWaits) {
  const Ranks ranks = {waits(0, 3), waits(1, 0), waits(2, 1), computes(3, 10)};
  EXPECT_EQ(awaited(ranks, 2), Numbers{3});
  EXPECT_EQ(awaited(ranks, 0), Numbers{3});
  EXPECT_EQ(verdict(ranks, 2, 10), "rank 3 on node3 is stalled: it last entered 'ring hop' at step 3, 10.0 s ago");
}

TEST(Stall, ARankThatGoesOnIsSlow) {
  const Ranks ranks = {waits(0, 1), computes(1, 4)};
  EXPECT_EQ(verdict(ranks, 0, 10), "rank 1 on node1 is slow: it last entered 'ring hop' at step 3, 4.0 s ago");
  EXPECT_EQ(seconds_since_progress(ranks, 0), 4);
}

TEST(Stall, AProcessThatDoesNotAnswerExplainsEveryWait) {
  Ranks ranks = {waits(0, 1), computes(1, 10), waits(2, 0)};
  ranks[2].silent = 7;
  EXPECT_EQ(awaited(ranks, 0), Numbers{2});
  EXPECT_EQ(verdict(ranks, 0, 10),
            "rank 2 on node2 is dead: no sign of life for 7.0 s; it last entered 'ring hop' at step 3");
  EXPECT_EQ(seconds_since_progress(ranks, 0), std::nullopt);
  ranks[2].process_has_ended = true;
  EXPECT_EQ(verdict(ranks, 0, 10),
            "rank 2 on node2 is dead: its process has ended; it last entered 'ring hop' at step 3");
  ranks[1].silent = 3;
  // The one that is waited for, of several.
  EXPECT_EQ(awaited(ranks, 0), Numbers{1});
  ranks[0].activity.peer = 3;
  ranks.push_back(computes(3, 1));
  EXPECT_EQ(awaited(ranks, 0), (Numbers{1, 2}));
  EXPECT_EQ(verdict(ranks, 0, 10),
            "rank 1 on node1 is dead: no sign of life for 3.0 s; it last entered 'ring hop' at step 3; so are ranks 2");
}

TEST(Stall, RanksThatWaitForEachOtherAreAllNamed) {
  Ranks ranks = {waits(0, 1), waits(1, 2), waits(2, 1)};
  EXPECT_EQ(awaited(ranks, 0), (Numbers{1, 2}));
  EXPECT_EQ(verdict(ranks, 0, 10), "ranks 1, 2 wait for each other");
  // What they exchange may be on its way.
  EXPECT_EQ(seconds_since_progress(ranks, 0), 10);
  ranks[2].activity.seconds = 1;
  EXPECT_EQ(seconds_since_progress(ranks, 0), 1);
  // Another thread of rank 2 waits, so it is rank 2 itself that does not go on.
  ranks[2].activity.computes = true;
  EXPECT_EQ(awaited(ranks, 0), Numbers{2});
}

TEST(Stall, ARankWhosePartHasEndedIsNamed) {
  const Ranks ranks = {waits(0, 1), state(1, Activity::Kind::kEnded, 1)};
  EXPECT_EQ(verdict(ranks, 0, 10), "rank 1 on node1 has ended its part; it last entered 'ring hop' at step 3");
  EXPECT_EQ(seconds_since_progress(ranks, 0), std::nullopt);
}

TEST(Stall, TheTableHasALineForEachRankTheNamedOneFirst) {
  Ranks ranks = {waits(0, 1), computes(1, 10), waits(2, 0)};
  ranks[0].activity.sends = true;
  const std::string all =
      "  rank 1 on node1: computes, last entered 'ring hop' at step 3, 10.0 s ago\n"
      "  rank 0 on node0: waits for rank 1 in 'ring hop' at step 3, 10.0 s, 4096 bytes to send\n"
      "  rank 2 on node2: waits for rank 0 in 'ring hop' at step 3, 10.0 s, 4096 bytes to receive\n";
  EXPECT_EQ(waits_table(ranks, 0), all);
  EXPECT_EQ(waits_table(ranks, 0, 100), all.substr(0, all.find('\n') + 1) + "  and 2 more\n");
  ranks[1].silent = 2;
  EXPECT_EQ(waits_table(ranks, 0, 100),
            "  rank 1 on node1: no sign of life for 2.0 s, last entered 'ring hop' at step 3\n  and 2 more\n");
}

TEST(Stall, NothingIsSaidOfWhatIsNotKnown) {
  Ranks ranks = {waits(0, 1), state(1, Activity::Kind::kUnknown, 0)};
  EXPECT_EQ(verdict(ranks, 0, 10), "rank 1 on node1 has not answered yet");
  ranks[1].silent = 7;
  EXPECT_EQ(verdict(ranks, 0, 10), "rank 1 on node1 is dead: no sign of life for 7.0 s");
  EXPECT_EQ(waits_table(ranks, 0, 100), "  rank 1 on node1: no sign of life for 7.0 s\n  and 1 more\n");
}

TEST(Stall, LongNamesAreCutOff) {
  Activity activity;
  activity.set_operation(std::string(1000, 'x'));
  activity.set_step(std::string(1000, 'y'));
  EXPECT_EQ(std::string(activity.operation).size(), sizeof activity.operation - 1);
  EXPECT_EQ(std::string(activity.step).size(), sizeof activity.step - 1);
}

}  // namespace
}  // namespace zoetrope::comm
