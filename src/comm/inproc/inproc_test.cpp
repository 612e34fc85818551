// How in-process runs fail: one rank's exception, deadlines, disagreement. The contract itself is tested in
// communicator_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <latch>
#include <limits>
#include <stdexcept>
#include <thread>

#include "zoetrope/communicator.h"
#include "zoetrope/error.h"

#include "base/host_name.h"
#include "comm/stall.h"
#include "trace/trace.h"

namespace zoetrope::comm {
namespace {

std::string error_of(int ranks, const std::function<void(Communicator&)>& body, const RankOptions& options = {}) {
  try {
    run_ranks(ranks, body, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Rank 2 does not come back before another rank has failed; its error.
std::string stalled_in_a_chain(const RankOptions& options) {
  std::latch failed(1);
  return error_of(
      3,
      [&](Communicator& comm) {
        comm.barrier();
        comm.set_step("step 3, layer 7");
        if (comm.rank() == 2) {
          failed.wait();
          return;
        }
        char bytes[3] = {};
        const Segment receive{comm.rank() + 1, bytes, sizeof bytes};
        try {
          comm.exchange({}, {&receive, 1}, "ring hop").wait();
        } catch (const Error&) {
          if (comm.rank() == 0) failed.count_down();
          throw;
        }
      },
      options);
}

TEST(RunRanks, RefusesNoRanks) {
  EXPECT_EQ(error_of(0, [](Communicator&) {}), "0 ranks cannot run; 1 or more can");
}

struct OwnException : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Threads that the system refuses: there is address space for two of these stacks, not for four. The ranks that run by
// then are stopped.
TEST(RunRanks, MoreRanksThanThreadsIsAnError) {
  constexpr size_t kStack = size_t{256} << 20;
  pthread_attr_t usual, large;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&large), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&large, kStack), 0);
  ASSERT_EQ(pthread_setattr_default_np(&large), 0);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit{pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + 2 * kStack + kStack / 2, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  std::atomic<int> stopped = 0;
  const std::string error = error_of(4, [&](Communicator& comm) {
    try {
      comm.barrier();
    } catch (const Error&) {
      ++stopped;
      throw;
    }
  });
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
  const std::string started = std::to_string(stopped);
  EXPECT_GE(stopped, 1);
  EXPECT_EQ(error.find("only " + started + " of 4 ranks could be started, as the system gives no more threads"), 0u)
      << error;
}

// The others wait for messages that never come; all end, and the first exception comes back with its type.
TEST(RunRanks, FirstExceptionEndsAllRanksAndIsRethrown) {
  for (const int n : {1, 2, 4, 7}) {
    std::atomic<int> stopped = 0;
    const auto body = [&](Communicator& comm) {
      if (comm.rank() == n - 1) throw OwnException("the disk is full");
      char byte = 0;
      const Segment receive{n - 1, &byte, 1};
      try {
        comm.exchange({}, {&receive, 1}, "ring hop").wait();
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "rank " + std::to_string(comm.rank()) +
                                                 " stopped in 'ring hop' because rank " + std::to_string(n - 1) +
                                                 " failed: the disk is full");
        ++stopped;
        throw;
      }
    };
    try {
      run_ranks(n, body);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const OwnException& error) {
      EXPECT_STREQ(error.what(), "the disk is full");
    }
    EXPECT_EQ(stopped, n - 1);
  }
}

TEST(RunRanks, ExceptionsThatAreNoStdExceptionComeBackToo) {
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 0) throw 7;
                           comm.barrier();
                         }),
               int);
}

// Posts fail after a failure as waits do, so that a rank that never waits ends too.
TEST(RunRanks, NothingCanBePostedAfterAFailure) {
  EXPECT_EQ(error_of(2,
                     [](Communicator& comm) {
                       if (comm.rank() == 0) throw Error("broken");
                       char byte = 0;
                       const Segment send{0, &byte, 1};
                       std::vector<Work> works;
                       while (true) works.push_back(comm.exchange({&send, 1}, {}, "send"));
                     }),
            "broken");
}

TEST(RunRanks, AbsentRankIsNamedWithOperationAndStep) {
  const std::string error = error_of(3,
                                     [](Communicator& comm) {
                                       comm.set_step("step 3");
                                       comm.barrier();
                                       if (comm.rank() != 2) return;
                                       char byte = 0;
                                       const Segment receive{1, &byte, 1};
                                       comm.exchange({}, {&receive, 1}, "ring hop").wait();
                                     },
                                     {.timeout_seconds = 5});
  EXPECT_EQ(error,
            "rank 2 waited 5 s for rank 1 in 'ring hop' at step 3: its send of 1 bytes was never posted; rank 1 on " +
                host_name() + " has ended its part; it last entered 'barrier' at step 3");
}

// Rank 0 waits for rank 1 and that one for rank 2, whose thread sleeps until the others have given up. All three run
// into their deadlines or the failure; the sleeper is named whoever is first.
TEST(RunRanks, StalledRankIsNamedWithWhatItEnteredLast) {
  const std::string error = stalled_in_a_chain({.timeout_seconds = 1});
  EXPECT_EQ(error.substr(0, 5), "rank ");
  const std::string verdict =
      "rank 2 on " + host_name() + " is stalled: it last entered 'barrier' at step 3, layer 7, ";
  EXPECT_NE(error.find(verdict), std::string::npos) << error;
}

// Whoever looks when another rank has just given up would see that rank compute, and nobody wait for the one behind it.
TEST(RunRanks, AllWhoseDeadlinePassesNameTheSame) {
  std::latch failed(2), ready(2);
  std::array<std::string, 2> errors;
  error_of(3,
           [&](Communicator& comm) {
             comm.barrier();
             if (comm.rank() == 2) {
               failed.wait();
               return;
             }
             char byte = 0;
             const Segment receive{comm.rank() + 1, &byte, 1};
             ready.arrive_and_wait();
             // Rank 1 gives up first, and the failure of the run comes only when rank 0 has too.
             if (comm.rank() == 1) comm.set_timeout(1);
             try {
               comm.exchange({}, {&receive, 1}, "ring hop").wait();
             } catch (const Error& error) {
               errors[static_cast<size_t>(comm.rank())] = error.what();
             }
             failed.arrive_and_wait();
             throw Error("given up");
           },
           {.timeout_seconds = 2});
  const std::string verdict = "rank 2 on " + host_name() + " is stalled: ";
  for (const std::string& error : errors) EXPECT_NE(error.find(verdict), std::string::npos) << error;
}

TEST(RunRanks, ItIsPrintedOnceWhoWaitsForWhom) {
  testing::internal::CaptureStderr();
  stalled_in_a_chain({.timeout_seconds = 1});
  const std::string printed = testing::internal::GetCapturedStderr();
  const std::string host = host_name();
  for (const std::string& line : {"  rank 2 on " + host + ": computes, last entered 'barrier' at step 3, layer 7, ",
                                  "  rank 0 on " + host + ": waits for rank 1 in 'ring hop' at step 3, layer 7, ",
                                  "  rank 1 on " + host + ": waits for rank 2 in 'ring hop' at step 3, layer 7, "}) {
    const size_t at = printed.find(line);
    EXPECT_NE(at, std::string::npos) << printed;
    EXPECT_EQ(printed.find(line, at + 1), std::string::npos) << printed;
  }
  EXPECT_NE(printed.find(" s, 3 bytes to receive\n"), std::string::npos) << printed;
}

// The rank that is waited for takes longer than the deadline, but begins one step after another.
TEST(RunRanks, WaitsGoOnWhileTheOtherRankDoes) {
  const auto body = [](Communicator& comm) {
    if (comm.rank() == 1)
      for (int step = 0; step < 20; ++step) {
        comm.set_step("step " + std::to_string(step));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    comm.barrier();
  };
  EXPECT_EQ(error_of(2, body, {.timeout_seconds = 2, .extends = true}), "no error");
  const std::string error = error_of(2, body, {.timeout_seconds = 2});
  EXPECT_NE(error.find("rank 1 on " + host_name() + " is slow: it last entered no operation at step "),
            std::string::npos)
      << error;
  EXPECT_NE(stalled_in_a_chain({.timeout_seconds = 1, .extends = true}).find(" is stalled: "), std::string::npos);
}

TEST(RunRanks, TheDeadlineOfLaterWaitsCanBeSet) {
  const std::string error = error_of(2, [](Communicator& comm) {
    const auto both = comm.split(0, comm.rank());
    comm.set_timeout(1);
    char byte = 0;
    const Segment receive{1, &byte, 1};
    if (comm.rank() == 0) both->exchange({}, {&receive, 1}, "hop").wait();
  });
  EXPECT_EQ(error.substr(0, 36), "rank 0 waited 1 s for rank 1 in 'hop");
}

TEST(RunRanks, SendThatNobodyReceivesTimesOutToo) {
  const std::string error = error_of(2,
                                     [](Communicator& comm) {
                                       char byte = 0;
                                       const Segment send{1, &byte, 1};
                                       if (comm.rank() == 0) comm.exchange({&send, 1}, {}, "Ulysses out").wait();
                                     },
                                     {.timeout_seconds = 1});
  EXPECT_EQ(error,
            "rank 0 waited 1 s for rank 1 in 'Ulysses out': its receive of 1 bytes was never posted; rank 1 on " +
                host_name() + " has ended its part; it last entered no operation");
}

// Sub-communicators speak of the ranks of the job.
TEST(RunRanks, TimeOutInASplitNamesRanksOfTheJob) {
  const std::string error = error_of(4,
                                     [](Communicator& comm) {
                                       const auto pair = comm.split(comm.rank() / 2, comm.rank());
                                       char byte = 0;
                                       const Segment receive{0, &byte, 1};
                                       if (comm.rank() == 3) pair->exchange({}, {&receive, 1}, "hop").wait();
                                     },
                                     {.timeout_seconds = 5});
  EXPECT_EQ(error.substr(0, 35), "rank 3 waited 5 s for rank 2 in 'ho");
}

// A thread that computes for ever cannot be stopped; the run ends all the same, with the error printed.
TEST(RunRanksDeathTest, EndsTheProcessWhereAThreadNeverComesBack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_ranks(2,
                        [](Communicator& comm) {
                          while (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
                          comm.barrier();
                        },
                        {.timeout_seconds = 1}),
              testing::ExitedWithCode(1), "zoetrope: rank 0 waited 1 s for rank 1 in 'barrier'");
}

TEST(Exchange, MismatchedSizesNameBothRanks) {
  const std::string error = error_of(2, [](Communicator& comm) {
    std::vector<char> data(16);
    const Segment send{1, data.data(), 5};
    const Segment receive{0, data.data(), 7};
    if (comm.rank() == 0) comm.exchange({&send, 1}, {}, "pack").wait();
    else comm.exchange({}, {&receive, 1}, "unpack").wait();
  });
  EXPECT_EQ(error, "rank 0 sends 5 bytes in 'pack' where rank 1 expects 7 bytes in 'unpack'");
}

TEST(Exchange, RefusesRanksThatAreNotThere) {
  EXPECT_EQ(error_of(1,
                     [](Communicator& comm) {
                       const Segment send{.peer = 3};
                       comm.exchange({&send, 1}, {}, "hop").wait();
                     }),
            "'hop' names rank 3; the communicator has ranks 0 to 0");
  for (const int rank : {-1, 2}) {
    EXPECT_EQ(error_of(2, [&](Communicator& comm) { comm.world_rank(rank); }),
              fmt::format("rank {} is none of the communicator's; it has ranks 0 to 1", rank));
  }
}

TEST(Exchange, RefusesBytesAtNoAddress) {
  EXPECT_EQ(error_of(1,
                     [](Communicator& comm) {
                       const Segment send{.bytes = 5};
                       comm.exchange({&send, 1}, {}, "hop").wait();
                     }),
            "'hop' has a piece of 5 bytes at no address; say where they are");
}

TEST(RunRanks, NeedsAFunction) {
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(error_of(ranks, std::function<void(Communicator&)>()),
              "there is nothing for the ranks to run; give a function");
  }
}

// Dropped work frees its buffers for the caller at once; a peer that counts on it learns so by its deadline.
TEST(Exchange, DroppedWorkIsNotTouchedAgain) {
  std::latch dropped(1);
  const std::string error = error_of(2,
                                     [&](Communicator& comm) {
                                       std::vector<char> data(1000);
                                       if (comm.rank() == 0) {
                                         const Segment send{1, data.data(), data.size()};
                                         { const Work given_up = comm.exchange({&send, 1}, {}, "given up"); }
                                         dropped.count_down();
                                       } else {
                                         const Segment receive{0, data.data(), data.size()};
                                         dropped.wait();
                                         comm.exchange({}, {&receive, 1}, "hop").wait();
                                       }
                                     },
                                     {.timeout_seconds = 1});
  EXPECT_EQ(error.substr(0, 36), "rank 1 waited 1 s for rank 0 in 'hop");
}

TEST(Counters, WaitingCountsOnlyInsideWait) {
  run_ranks(2, [](Communicator& comm) {
    char byte = 0;
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const Segment send{0, &byte, 1};
      comm.exchange({&send, 1}, {}, "late").wait();
      return;
    }
    const Segment receive{1, &byte, 1};
    Work work = comm.exchange({}, {&receive, 1}, "late");
    EXPECT_EQ(comm.counters().wait_seconds, 0);
    work.wait();
    EXPECT_GT(comm.counters().wait_seconds, 0);
  });
}

TEST(Deadlines, AreNumbersThatAreNotNegative) {
  for (const double seconds : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string refusal = fmt::format("timeout_seconds={}: must be at least 0", seconds);
    EXPECT_EQ(error_of(2, [](Communicator& comm) { comm.barrier(); }, {.timeout_seconds = seconds}), refusal);
    EXPECT_EQ(error_of(1, [&](Communicator& comm) { comm.set_timeout(seconds); }), refusal);
  }
}

}  // namespace
}  // namespace zoetrope::comm
