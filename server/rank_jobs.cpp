#include "server/rank_jobs.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "comm/stall.h"
#include "pipeline/agreement.h"

namespace zoetrope::server {
namespace {

using pipeline::broadcast_text;
using std::chrono::milliseconds;

constexpr auto kBetweenStates = milliseconds(100);
// Seconds without a question to the other ranks. Well below what the end of a failed run waits for a rank that has not
// heard of it, 5 s.
constexpr double kLongestSilence = 1;
constexpr const char* kOrders = "order of the server";
constexpr const char* kStates = "state of a job";

}  // namespace

// One job on this rank.
struct RankJobs::Job {
  explicit Job(comm::Communicator& of) : ranks(of) {}

  comm::Communicator& ranks;
  std::atomic<bool> stopped = false;
  std::mutex mutex;
  std::condition_variable changed;
  State state = State::kRuns;
  int first_failed = -1;      // rank
  std::exception_ptr broken;  // why the ranks could not tell each other
};

RankJobs::RankJobs(comm::Communicator& world, double timeout_seconds)
    : world_(world),
      timeout_seconds_(timeout_seconds),
      orders_(world.split(0, world.rank())),
      states_(world.split(0, world.rank())) {
  if (world.rank() == 0) asking_ = std::thread([this] { ask_now_and_then(); });
}

RankJobs::~RankJobs() {
  if (!asking_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  asking_.join();
  if (!lost_.empty()) return;  // nobody listens
  try {
    send(Order::kEnd);
  } catch (const Error&) {  // the end of this process is theirs
  }
}

// So that the wait for the next job may be as long as it likes, and a rank that has gone is found even so.
void RankJobs::ask_now_and_then() {
  const auto between = std::chrono::duration<double>(std::min(kLongestSilence, timeout_seconds_ / 4));
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, between, [&] { return ends_; });
      if (ends_ || !lost_.empty()) return;
    }
    const std::lock_guard sending(sending_);
    {
      const std::lock_guard lock(mutex_);
      if (job_runs_) continue;
    }
    try {
      send(Order::kQuestion);
    } catch (const Error& error) {
      note_lost(error.what());
    }
  }
}

void RankJobs::send(Order order, const std::string& text) {
  orders_->broadcast(0, &order, sizeof order, kOrders);
  if (order == Order::kJob) broadcast_text(*orders_, 0, text, kOrders);
  if (order == Order::kQuestion) gather_answers();
}

// All ranks to all, so that whoever waits names the rank that is missing and not one that waits for it too.
void RankJobs::gather_answers() {
  const std::byte mine{1};
  std::vector<std::byte> all(static_cast<size_t>(world_.size()));
  orders_->all_gather(&mine, all.data(), sizeof mine, kOrders);
}

std::string RankJobs::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void RankJobs::note_lost(const char* why) {
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) lost_ = why;
}

void RankJobs::run(const std::string& order, const Part& part) {
  std::string failure;
  try {
    {
      const std::lock_guard sending(sending_);
      {
        const std::lock_guard lock(mutex_);
        if (!lost_.empty()) throw Error(lost_);
        job_runs_ = true;
      }
      send(Order::kJob, order);
    }
    failure = perform(part);
  } catch (const std::exception& error) {
    note_lost(error.what());
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    job_runs_ = false;
  }
  if (!failure.empty()) throw Error(failure);
}

void RankJobs::follow(const std::function<Part(const std::string& order)>& part) {
  while (true) {
    Order order = Order::kQuestion;
    orders_->broadcast(0, &order, sizeof order, kOrders);
    if (order == Order::kEnd) return;
    if (order == Order::kQuestion) {
      gather_answers();
      continue;
    }
    const std::string text = broadcast_text(*orders_, 0, {}, kOrders);
    perform([&](comm::Communicator& ranks, const std::function<bool()>& stopped) { part(text)(ranks, stopped); });
  }
}

// Returns the first failure of any rank. Throws where the ranks could not tell each other how it went.
std::string RankJobs::perform(const Part& part) {
  if (ranks_ == nullptr) ranks_ = world_.split(0, world_.rank());
  ranks_->set_timeout(timeout_seconds_);  // the job before may have set its own
  Job job(*ranks_);
  std::thread watching([&] { watch(job); });
  std::string failure;
  try {
    part(*ranks_, [&] { return job.stopped.load(); });
  } catch (const std::exception& error) {  // Error, or memory that ran out
    failure = error.what();
    if (failure.empty()) failure = "the job failed";
  }
  {
    const std::lock_guard lock(job.mutex);
    job.state = failure.empty() ? State::kEnded : State::kFailed;
    job.changed.notify_all();
  }
  watching.join();
  // Names the rank that is missing; the part may have waited for one that waited for that.
  if (job.broken) std::rethrow_exception(job.broken);
  if (job.first_failed < 0) return "";
  ranks_.reset();
  on_failure();
  return broadcast_text(*states_, job.first_failed, failure, kStates);
}

void RankJobs::watch(Job& job) {
  const comm::WatchingThread watching;
  std::vector<State> all(static_cast<size_t>(world_.size()));
  const auto none_runs = [&] { return std::find(all.begin(), all.end(), State::kRuns) == all.end(); };
  try {
    do {
      State state;
      {
        std::unique_lock lock(job.mutex);
        job.changed.wait_for(lock, kBetweenStates, [&] { return job.state != State::kRuns; });
        state = job.state;
      }
      states_->all_gather(&state, all.data(), sizeof state, kStates);
      const auto failed_rank = std::find(all.begin(), all.end(), State::kFailed);
      if (failed_rank == all.end() || job.first_failed >= 0) continue;
      job.first_failed = static_cast<int>(failed_rank - all.begin());
      job.stopped = true;
      job.ranks.stop();
    } while (!none_runs());
  } catch (...) {
    job.broken = std::current_exception();
    job.stopped = true;
    job.ranks.stop();
  }
}

}  // namespace zoetrope::server
