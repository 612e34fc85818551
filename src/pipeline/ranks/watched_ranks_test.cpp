// Parts that end well and that fail on one rank, on threads and under mpirun.
#include "pipeline/ranks/watched_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "comm/rank_test.h"

namespace zoetrope::pipeline {
namespace {

ZT_RANK_TEST(WatchedRanks, AFailureIsKnownOnAllAndTheNextPartWorks) {
  WatchedRanks watched(comm, 60);
  const int n = comm.size(), me = comm.rank();
  // The others wait for whoever fails.
  const auto failure = [&](int failing, const std::function<void()>& fail) {
    return watched.run([&](comm::Communicator& ranks, const std::function<bool()>&) {
      const auto own = ranks.split(0, me);
      if (me == failing) fail();
      if (own->all_reduce_sum(1) != n) throw Error("ranks are missing");
    });
  };
  EXPECT_FALSE(failure(-1, [] {}));
  for (int rank = 0; rank < n; ++rank) {
    const auto error = failure(rank, [] { throw std::invalid_argument("no such picture"); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->rank, rank);
    EXPECT_EQ(error->why, "no such picture");
    EXPECT_EQ(error->thrown != nullptr, me == rank);
    if (error->thrown) {
      EXPECT_THROW(std::rethrow_exception(error->thrown), std::invalid_argument);
    }
  }
  EXPECT_FALSE(failure(-1, [] {}));
  EXPECT_EQ(failure(n - 1, [] { throw std::bad_alloc(); })->why, "out of memory");
  EXPECT_EQ(failure(0, [] { throw 7; })->why, "an exception without a message");
  EXPECT_FALSE(failure(-1, [] {}));
}

// What all refuse alike is each one's own.
ZT_RANK_TEST(WatchedRanks, ARefusalOfAllIsThrownByAll) {
  WatchedRanks watched(comm, 60);
  const auto error = watched.run(
      [](comm::Communicator&, const std::function<bool()>&) { throw Error("height=15: must be a multiple of 16"); });
  ASSERT_TRUE(error);
  ASSERT_TRUE(error->thrown);
  EXPECT_THROW(std::rethrow_exception(error->thrown), Error);
}

// A rank that computes for long between two questions is given the time for the next one.
ZT_RANK_TEST(WatchedRanks, AFailureWaitsForARankThatAsksRarely) {
  constexpr double kTimeout = 0.2;
  constexpr auto kComputes = std::chrono::milliseconds(600);
  WatchedRanks watched(comm, kTimeout);
  const int slow = comm.size() - 1;
  if (slow == 0) return;
  const auto error = watched.run([&](comm::Communicator& ranks, const std::function<bool()>& stopped) {
    const bool is_slow = ranks.rank() == slow;
    if (!is_slow) std::this_thread::sleep_for(kComputes * 3 / 2);  // fails soon after the other has asked
    while (is_slow && !stopped()) std::this_thread::sleep_for(kComputes);
    if (!is_slow) throw Error("no such picture");
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->why, "no such picture");
}

}  // namespace
}  // namespace zoetrope::pipeline
