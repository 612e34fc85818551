#include "server/rank_jobs.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "pipeline/ranks/agreement.h"

namespace zoetrope::server {
namespace {

using pipeline::broadcast_text;

// Seconds without a question to the other ranks. Well below what the end of a failed run waits for a rank that has not
// heard of it, 5 s.
constexpr double kLongestSilence = 1;
constexpr const char* kOrders = "order of the server";

}  // namespace

RankJobs::RankJobs(comm::Communicator& world, double timeout_seconds)
    : world_(world),
      timeout_seconds_(timeout_seconds),
      orders_(world.split(0, world.rank())),
      watched_(world, timeout_seconds) {
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
    } catch (const std::exception& error) {  // memory that ran out, too
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
  const auto failure = watched_.run(part);
  if (!failure) return "";
  on_failure();
  return failure->why;
}

}  // namespace zoetrope::server
