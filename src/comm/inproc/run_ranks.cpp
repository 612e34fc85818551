// Ranks as threads: starting them, stopping the others when one fails.
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/print.h"
#include "base/unfinished_files.h"
#include "comm/inproc/world.h"
#include "comm/transport.h"

namespace zoetrope::comm {

namespace {

using inproc::Group;
using inproc::World;

// A rank that computes between two waits notices a failure late: it is given as much, or as long as a wait may last.
constexpr double kLeastPatience = 5;
// After a wait has passed its deadline: a rank that has not come back by then will hardly do so.
constexpr double kPatienceWithStalled = 3;

std::string describe(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

// What the threads report back.
struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  std::exception_ptr first;
  std::string why;
};

// The first failure is the one that the caller sees.
void note_failure(Ending& ending, const std::exception_ptr& failure, const std::string& why) {
  const std::lock_guard lock(ending.mutex);
  if (ending.first != nullptr) return;
  ending.first = failure;
  ending.why = why;
}

void run_rank(const std::shared_ptr<World>& world, const std::shared_ptr<Group>& group, int rank,
              const std::function<void(Communicator&)>& body, Ending& ending) {
  std::exception_ptr failure;
  World::Rank& self = world->ranks[static_cast<size_t>(rank)];
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());  // for debuggers
  {
    const std::lock_guard lock(world->mutex);
    self.thread = std::this_thread::get_id();
    self.last_change = std::chrono::steady_clock::now();
  }
  try {
    body(*inproc::make_communicator(world, group, rank, world->options.trace));
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr) {
    const std::string why = describe(failure);
    // Before the others are told, so that what they throw in consequence comes second.
    note_failure(ending, failure, why);
    world->set_failed(rank, why);
  }
  {
    const std::lock_guard lock(world->mutex);
    self.ended = true;
    self.last_change = std::chrono::steady_clock::now();
  }
  const std::lock_guard lock(ending.mutex);
  --ending.running;
  ending.changed.notify_all();
}

// As many of the n threads as the system gives. Where that is not all of them, those that run are stopped.
std::vector<std::thread> start_threads(const std::shared_ptr<World>& world, const std::shared_ptr<Group>& group,
                                       const std::function<void(Communicator&)>& body, Ending& ending) {
  const int n = static_cast<int>(world->ranks.size());
  std::vector<std::thread> threads;
  threads.reserve(world->ranks.size());
  try {
    for (int rank = 0; rank < n; ++rank) {
      threads.emplace_back([&, rank] { run_rank(world, group, rank, body, ending); });
    }
  } catch (const std::exception& error) {
    const int started = static_cast<int>(threads.size());
    const std::string why = fmt::format(
        "only {} of {} ranks could be started, as the system gives no more threads ({})", started, n, error.what());
    note_failure(ending, std::make_exception_ptr(Error(why)), why);
    world->set_failed(started, why);
    const std::lock_guard lock(ending.mutex);
    ending.running -= n - started;
  }
  return threads;
}

bool has_stalled(World& world) {
  const std::lock_guard lock(world.mutex);
  return !world.stall_verdict.empty();
}

// Until all have ended; where one does not end after a failure, the process does.
void await(Ending& ending, World& world) {
  std::unique_lock lock(ending.mutex);
  const auto ended = [&] { return ending.running == 0; };
  ending.changed.wait(lock, [&] { return ended() || ending.first != nullptr; });
  const double patience_seconds =
      has_stalled(world) ? kPatienceWithStalled : std::max(kLeastPatience, world.options.timeout_seconds);
  if (ending.changed.wait_until(lock, deadline_after(patience_seconds), ended)) return;
  print_error("zoetrope: {}\n", printable(ending.why));
  std::fflush(nullptr);
  remove_unfinished_files();
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

void run_ranks(int n, const std::function<void(Communicator&)>& body, const RankOptions& options) {
  if (n < 1) fail("{} ranks cannot run; 1 or more can", n);
  check_body(body);
  std::vector<int> members(static_cast<size_t>(n));
  std::iota(members.begin(), members.end(), 0);
  const auto world = std::make_shared<World>(n, options);
  const auto group = std::make_shared<Group>(std::move(members));
  if (n == 1) {
    body(*inproc::make_communicator(world, group, 0, options.trace));
    return;
  }
  Ending ending;
  ending.running = n;
  std::vector<std::thread> threads = start_threads(world, group, body, ending);
  await(ending, *world);
  for (std::thread& thread : threads) thread.join();
  if (ending.first != nullptr) std::rethrow_exception(ending.first);
}

}  // namespace zoetrope::comm
