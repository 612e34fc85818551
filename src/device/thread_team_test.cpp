#include "device/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/error.h"

namespace zoetrope {
namespace {

TEST(ThreadTeam, RunsEveryIndexOnceWhateverTheTeam) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadTeam team(threads);
    for (const int64_t count : {0, 1, 2, 7, 64}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      team.parallel_for(count, 1, [&](IndexRange range, int) {
        for (int64_t i = range.begin; i < range.end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadTeam, GivesEachThreadItsOwnNumber) {
  ThreadTeam team(4);
  std::vector<std::atomic<int>> seen(4);
  team.run([&](int thread) { ++seen[static_cast<size_t>(thread)]; });
  for (const auto& n : seen) EXPECT_EQ(n, 1);
}

// Threads that come late find their bodies taken, and must take none of the next round twice. What the bodies of a
// round wrote is seen by the caller, and by those of the next.
TEST(ThreadTeam, ManyShortRoundsLoseNothing) {
  constexpr int kThreads = 4, kRounds = 20000;
  ThreadTeam team(kThreads);
  std::vector<int> counts(kThreads);
  int64_t sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    team.run([&](int thread) {
      const auto next = static_cast<size_t>((thread + round) % kThreads);
      counts[next] += 1 + static_cast<int>(next);
    });
    sum += counts[static_cast<size_t>(round % kThreads)];
    if (round % 1000 == 0) std::this_thread::sleep_for(2 * ThreadTeam::kLongestSpin);  // they fall asleep
  }
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(counts[static_cast<size_t>(i)], kRounds * (1 + i));
  EXPECT_GT(sum, 0);
}

// Ranks are threads, each with a team of its own.
TEST(ThreadTeam, TeamsOfSeveralThreadsRunAtOnce) {
  std::atomic<int> bodies = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&] {
      ThreadTeam team(3);
      for (int round = 0; round < 100; ++round) team.run([&](int) { ++bodies; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(bodies, 3 * 100 * 3);
}

// A thread that is blocked in a signal's handler, so that it cannot look for work.
std::atomic<bool> blocked = false;
int release_pipe[2];
void block(int) {
  blocked = true;
  char byte = 0;
  while (read(release_pipe[0], &byte, 1) < 0) {
  }
  blocked = false;
}

TEST(ThreadTeam, RunsTheBodiesOfAThreadThatGetsNoCore) {
  ASSERT_EQ(pipe(release_pipe), 0);
  struct sigaction action {
  }, before{};
  action.sa_handler = block;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  constexpr int kThreads = 3;
  ThreadTeam team(kThreads);
  const pthread_t caller = pthread_self();
  std::atomic<pthread_t> worker{};
  while (worker == pthread_t{}) {
    team.run([&](int thread) {
      if (thread == 1 && pthread_equal(pthread_self(), caller) == 0) worker = pthread_self();
    });
  }
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!blocked) std::this_thread::yield();
  std::vector<int> runs(kThreads);
  for (int round = 0; round < 10; ++round) team.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
  EXPECT_EQ(runs, std::vector<int>(kThreads, 10));
  ASSERT_EQ(write(release_pipe[1], "!", 1), 1);
  for (int round = 0; round < 10; ++round) team.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
  EXPECT_EQ(runs, std::vector<int>(kThreads, 20));
  while (blocked) std::this_thread::yield();
  sigaction(SIGUSR1, &before, nullptr);
  close(release_pipe[0]);
  close(release_pipe[1]);
}

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU time, not wall time: what the machine does besides makes it less, never more. Each thread waits twice, for the
// others and for the next round, and looks for kLongestSpin each time; ten times that is a twentieth of what one
// thread alone would take that looks on.
TEST(ThreadTeam, ThreadsThatWaitSleep) {
  for (const int threads : {2, 4}) {
    const std::chrono::duration<double> spins = 2 * threads * ThreadTeam::kLongestSpin;
    const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(200 * spins);
    ThreadTeam team(threads);
    team.run([](int) {});
    // Threads that spin do so in every try; a slow start on a busy machine is in some.
    const auto least_cpu_seconds = [&](const auto& body) {
      constexpr int kTries = 5;
      double least = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kTries && least >= 10 * spins.count(); ++i) {
        const double before = process_cpu_seconds();
        body();
        least = std::min(least, process_cpu_seconds() - before);
      }
      return least;
    };
    for (int sleeper = 0; sleeper < threads; ++sleeper) {  // the caller, or one of those it waits for
      const double seconds = least_cpu_seconds([&] {
        team.run([&](int thread) {
          if (thread == sleeper) std::this_thread::sleep_for(pause);
        });
      });
      EXPECT_LT(seconds, 10 * spins.count()) << "while thread " << sleeper << " of " << threads << " sleeps";
    }
    EXPECT_LT(least_cpu_seconds([&] { std::this_thread::sleep_for(pause); }), 10 * spins.count())
        << "between two runs of " << threads;
  }
}

// Stacks larger than all addresses imitate a system without memory for threads.
TEST(ThreadTeam, SaysHowManyThreadsTheSystemGives) {
  pthread_attr_t before, vast;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&vast), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&vast, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&vast), 0);
  std::string said;
  try {
    const ThreadTeam team(3);
  } catch (const Error& error) {
    said = error.what();
  }
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&vast);
  pthread_attr_destroy(&before);
  EXPECT_EQ(said.rfind("the system gives 1 of the 3 threads that were asked for", 0), 0u) << said;
}

}  // namespace
}  // namespace zoetrope
