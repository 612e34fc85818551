#include "server/rank_jobs.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace zoetrope::server {
namespace {

using std::chrono::milliseconds;

constexpr auto kBetweenStates = milliseconds(100);
constexpr const char* kOrders = "order of the server";
constexpr const char* kStates = "state of a job";

std::string broadcast_text(comm::Communicator& ranks, int root, std::string text, const char* operation) {
  int64_t bytes = std::ssize(text);
  ranks.broadcast(root, &bytes, sizeof bytes, operation);
  text.resize(static_cast<size_t>(bytes));
  ranks.broadcast(root, text.data(), text.size(), operation);
  return text;
}

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
  if (world.rank() == 0) waiting_ = std::thread([this] { keep_waiting(); });
}

RankJobs::~RankJobs() {
  if (!waiting_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  waiting_.join();
  if (!lost_.empty()) return;  // nobody listens
  try {
    say(Word::kEnd);
  } catch (const Error&) {  // the end of this process is theirs
  }
}

// A wait for the next job may be as long as it likes, and still a rank that does not answer is found.
void RankJobs::keep_waiting() {
  const auto between = std::chrono::duration<double>(std::min(1.0, timeout_seconds_ / 4));
  std::unique_lock lock(mutex_);
  while (!ends_ && lost_.empty()) {
    changed_.wait_for(lock, between, [&] { return ends_; });
    if (ends_ || job_runs_ || !lost_.empty()) continue;
    try {
      say(Word::kWait);
    } catch (const Error& error) {
      lost_ = error.what();
    }
  }
}

void RankJobs::say(Word word, const std::string& order) {
  orders_->broadcast(0, &word, sizeof word, kOrders);
  if (word == Word::kJob) broadcast_text(*orders_, 0, order, kOrders);
  if (word == Word::kWait) orders_->barrier();  // which needs an answer of all
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
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) throw Error(lost_);
    job_runs_ = true;
    try {
      say(Word::kJob, order);
    } catch (const Error& error) {
      lost_ = error.what();
      throw;
    }
  }
  std::string failure;
  try {
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
    Word word = Word::kWait;
    orders_->broadcast(0, &word, sizeof word, kOrders);
    if (word == Word::kEnd) return;
    if (word == Word::kWait) {
      orders_->barrier();
      continue;
    }
    const std::string order = broadcast_text(*orders_, 0, {}, kOrders);
    perform([&](comm::Communicator& ranks, const std::function<bool()>& stopped) { part(order)(ranks, stopped); });
  }
}

// Returns the first failure of any rank. Throws where the ranks could not tell each other how it went.
std::string RankJobs::perform(const Part& part) {
  if (!ranks_) ranks_ = world_.split(0, world_.rank());
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
  if (job.broken) std::rethrow_exception(job.broken);
  if (job.first_failed < 0) return "";
  ranks_.reset();
  failed();
  return broadcast_text(*states_, job.first_failed, failure, kStates);
}

void RankJobs::watch(Job& job) {
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
