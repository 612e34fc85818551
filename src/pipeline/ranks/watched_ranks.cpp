#include "pipeline/ranks/watched_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/stall.h"
#include "comm/transport.h"
#include "pipeline/ranks/agreement.h"

namespace zoetrope::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenStates = std::chrono::milliseconds(100);
// Of the longest time between two questions whether it is stopped: how long a part may take to ask again.
constexpr double kPatience = 3;
constexpr const char* kStates = "state of a job";
constexpr const char* kNoMemory = "out of memory";  // short enough for a string to hold without asking for any

// What a part threw, in words.
std::string words_of(const std::exception_ptr& thrown) {
  std::string words;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    words = kNoMemory;
  } catch (const std::exception& error) {
    words = error.what();
  } catch (...) {
  }
  return words.empty() ? "an exception without a message" : words;
}

}  // namespace

// What the ranks tell each other.
struct WatchedRanks::Word {
  State state;
  double longest;  // seconds, as Job::longest
};

// One part on this rank.
struct WatchedRanks::Job {
  explicit Job(comm::Communicator& of) : ranks(of) {}

  bool is_stopped() {
    const std::lock_guard lock(mutex);
    const Clock::time_point now = Clock::now();
    longest = std::max(longest, std::chrono::duration<double>(now - asked).count());
    asked = now;
    return stopped;
  }

  comm::Communicator& ranks;
  std::atomic<bool> stopped = false;
  std::mutex mutex;
  std::condition_variable changed;
  State state = State::kRuns;
  Clock::time_point asked = Clock::now();  // under mutex: when the part asked last whether it is stopped
  double longest = 0;                      // under mutex: seconds between two such questions
  std::string why;                         // it failed here; not changed once it has
  std::optional<Failure> failure;          // the first
  double patience = 0;                     // with a failure: seconds for which those are waited for that have not ended
  Clock::time_point end;                   // when they are over
  std::exception_ptr broken;               // why the ranks could not tell each other
};

WatchedRanks::WatchedRanks(comm::Communicator& world, double timeout_seconds)
    : world_(world), timeout_seconds_(timeout_seconds), states_(world.split(0, world.rank())) {}

std::optional<WatchedRanks::Failure> WatchedRanks::run(const Part& part) {
  if (!lost_.empty()) throw Error(lost_);
  if (ranks_ == nullptr) ranks_ = world_.split(0, world_.rank());
  ranks_->set_timeout(timeout_seconds_);  // the part before may have set its own
  Job job(*ranks_);
  std::thread watching;
  try {
    watching = std::thread([&] { watch(job); });
  } catch (const std::exception& error) {  // the others may have begun
    lost_ = fmt::format("a thread cannot be started: {}", error.what());
    throw;
  }
  std::exception_ptr thrown;
  std::string why;
  try {
    part(*ranks_, [&] { return job.is_stopped(); });
  } catch (...) {  // Error, memory that ran out, or what a callback of the user threw
    thrown = std::current_exception();
    try {
      why = words_of(thrown);
    } catch (const std::bad_alloc&) {
      why = kNoMemory;
    }
  }
  {
    const std::lock_guard lock(job.mutex);
    job.why = std::move(why);
    job.state = thrown ? State::kFailed : State::kEnded;
    job.changed.notify_all();
  }
  watching.join();
  try {
    // Names the rank that is missing; the part may have waited for one that waited for that.
    if (job.broken) std::rethrow_exception(job.broken);
  } catch (const std::exception& error) {
    lost_ = error.what();
    throw;
  }
  if (!job.failure) return std::nullopt;
  ranks_.reset();
  if (job.failure->rank == world_.rank() || job.failure->why == job.why) job.failure->thrown = thrown;
  return std::move(job.failure);
}

void WatchedRanks::watch(Job& job) {
  const comm::WatchingThread watching;
  try {
    std::vector<Word> all(static_cast<size_t>(world_.size()));
    // The first rank in this state; size() where none is.
    const auto first = [&](State state) {
      const auto is = [state](const Word& word) { return word.state == state; };
      return static_cast<int>(std::find_if(all.begin(), all.end(), is) - all.begin());
    };
    do {
      Word mine;
      {
        std::unique_lock lock(job.mutex);
        job.changed.wait_for(lock, kBetweenStates, [&] { return job.state != State::kRuns; });
        mine = {job.state, job.longest};
      }
      if (job.failure && mine.state != State::kRuns && Clock::now() > job.end) mine.state = State::kWaitedEnough;
      states_->all_gather(&mine, all.data(), sizeof mine, kStates);
      if (!job.failure && first(State::kFailed) < world_.size()) {
        job.patience = timeout_seconds_;
        for (const Word& word : all) job.patience = std::max(job.patience, kPatience * word.longest);
        end_others(job, first(State::kFailed));
      }
      if (first(State::kWaitedEnough) < world_.size() && first(State::kRuns) < world_.size()) {
        fail("rank {} has not ended its part {:.3g} s after rank {} failed: {}", first(State::kRuns), job.patience,
             job.failure->rank, job.failure->why);
      }
    } while (first(State::kRuns) < world_.size());
  } catch (...) {
    job.broken = std::current_exception();
    job.stopped = true;
    job.ranks.stop();
  }
}

void WatchedRanks::end_others(Job& job, int failed) {
  job.stopped = true;
  job.ranks.stop();
  job.end = comm::deadline_after(job.patience);
  const std::string why = failed == world_.rank() ? job.why : std::string();
  job.failure = Failure{failed, broadcast_text(*states_, failed, why, kStates), nullptr};
}

}  // namespace zoetrope::pipeline
