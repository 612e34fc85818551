// Jobs that end well, fail on one rank, are given up and do not end, on threads and under mpirun.
#include "server/rank_jobs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/error.h"

#include "comm/rank_test.h"

namespace zoetrope::server {
namespace {

using Stopped = std::function<bool()>;

constexpr size_t kBytes = size_t{1} << 20;

// Kept by a job for later ones, like the communicator of sharded weights.
thread_local std::unique_ptr<comm::Communicator> g_kept;

// What every rank does with an order.
void work(const std::string& order, comm::Communicator& ranks, const Stopped& stopped) {
  const int n = ranks.size(), me = ranks.rank();
  const auto child = ranks.split(0, me), other = child->split(0, me);
  if (order == "the last fails" && me == n - 1) throw Error("the last rank has no memory");
  if (order == "rank 0 gives up" && me == 0) {
    // Messages are on their way that nobody receives.
    std::vector<char> data(kBytes);
    std::vector<comm::Work> sends;
    for (int peer = 1; peer < n; ++peer) {
      const comm::Segment send{peer, data.data(), data.size()};
      sends.push_back(other->exchange({&send, 1}, {}, "send of a job"));
    }
    throw Error("interrupted");
  }
  if (order == "all compute until they are stopped" && me > 0) {
    while (!stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw Error("was stopped");
  }
  if (order == "all compute until they are stopped") throw Error("enough");
  if (order == "keep a communicator") g_kept = ranks.split(0, me);
  if (order == "rank 0 gives up what is kept" && me == 0) {
    g_kept.reset();
    throw Error("interrupted");
  }
  if (order == "rank 0 gives up what is kept") {
    try {
      g_kept->all_reduce_sum(1);
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "'all_reduce_sum' was stopped");  // and did not wait until its deadline
      throw;
    }
  }
  // Waits for whoever has failed.
  if (child->all_reduce_sum(1) != n) throw Error("ranks are missing");
}

ZT_RANK_TEST(RankJobs, AFailureEndsOneJobAndNotTheNext) {
  RankJobs jobs(comm, 60);
  int failures = 0, parts = 0;
  jobs.on_failure = [&] { ++failures; };
  if (comm.rank() > 0) {
    jobs.follow([&](const std::string& order) -> RankJobs::Part {
      return [&, order](comm::Communicator& ranks, const Stopped& stopped) {
        ++parts;
        work(order, ranks, stopped);
      };
    });
  } else {
    const auto failure = [&](const std::string& order) -> std::string {
      try {
        jobs.run(order, [&](comm::Communicator& ranks, const Stopped& stopped) {
          ++parts;
          work(order, ranks, stopped);
        });
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(failure("well"), "");
    EXPECT_EQ(failure("the last fails"), "the last rank has no memory");
    EXPECT_EQ(failure("well"), "");
    EXPECT_EQ(failure("rank 0 gives up"), "interrupted");
    EXPECT_EQ(failure("all compute until they are stopped"), "enough");
    EXPECT_EQ(failure("keep a communicator"), "");
    EXPECT_EQ(failure("rank 0 gives up what is kept"), "interrupted");
    EXPECT_EQ(failure("well"), "");
    EXPECT_EQ(failure("well"), "");
    EXPECT_EQ(jobs.lost(), "");
  }
  g_kept.reset();
  EXPECT_EQ(parts, 9);
  EXPECT_EQ(failures, 4);
}

ZT_RANK_TEST(RankJobs, ARankThatDoesNotEndAFailedJobIsNamed) {
  const int n = comm.size(), last = n - 1, me = comm.rank();
  if (n == 1) return;
  const std::string expected =
      fmt::format("rank {} has not ended its part 0.5 s after rank 0 failed: interrupted", last);
  const auto outside = comm.split(0, me);
  RankJobs jobs(comm, 0.5);
  const RankJobs::Part part = [&](comm::Communicator&, const Stopped&) {
    if (me == 0) throw Error("interrupted");
    if (me == last) outside->barrier();  // as in a read that does not return
  };
  const auto failure = [&]() -> std::string {
    try {
      if (me == 0) jobs.run("job", part);
      else jobs.follow([&](const std::string&) { return part; });
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(failure(), expected);
  if (me == 0) {
    EXPECT_EQ(jobs.lost(), expected);
  }
  if (me != last) outside->barrier();
  if (me == 0) {
    EXPECT_EQ(failure(), expected);  // and waits for nobody
  }
}

}  // namespace
}  // namespace zoetrope::server
