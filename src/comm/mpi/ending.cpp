#include "comm/mpi/ending.h"

#include <algorithm>

#include "base/error.h"
#include "base/print.h"
#include "base/unfinished_files.h"

namespace zoetrope::comm::mpi {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kAnswer{4};  // a live process answers within milliseconds, a starved one within this
constexpr Seconds kGrace{5};   // from the failure until ranks that have not ended are killed
constexpr Seconds kPause{1};   // this long without a poll, and the process was stopped
constexpr std::chrono::seconds kQuiet{2};

}  // namespace

Ending::Ending(Runtime& runtime, int rank, int size)
    : runtime_(runtime),
      rank_(rank),
      size_(size),
      ended_ranks_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size)) {}

// A process that was stopped and goes on finds questions and deadlines that are old; before it reports any, it listens
// whether another rank has reported meanwhile.
void Ending::notice_pause() {
  const Clock::time_point now = Clock::now();
  if (now - polled_at_ > kPause) quiet_until_ = now + kQuiet;
  polled_at_ = now;
}

void Ending::body_ended(const std::string& failure, double timeout_seconds) {
  notice_pause();
  timeout_seconds_ = timeout_seconds;
  ended_ = true;
  std::fill(heard_.begin(), heard_.end(), Clock::now());
  pinged_at_ = Clock::now();
  // After a stop a failure is a consequence of the one that was printed.
  if (!failure.empty() && !stopped_) {
    unreported_ = failure;
    ask_reporter();
  } else {
    tell_collector();
  }
}

// The candidates are asked in rank order, each once the one before has not answered in time. So all failed ranks agree
// on who prints as long as the live processes answer within kAnswer.
void Ending::ask_reporter() {
  asked_at_ = Clock::now();
  if (candidate_ != rank_) runtime_.send_control(candidate_, Control::Kind::kFailed, rank_, *unreported_);
  else if (!to_report_) to_report_ = Report{rank_, *unreported_};
}

void Ending::report() {
  print_error("zoetrope: {}\n", printable(to_report_->why));
  failed_rank_ = to_report_->rank;
  why_ = to_report_->why;
  to_report_.reset();
  stopped_ = reporter_ = true;
  stopped_at_ = Clock::now();
  collector_ = rank_;
  unreported_.reset();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) runtime_.send_control(peer, Control::Kind::kStop, failed_rank_, why_);
  runtime_.set_failed(failed_rank_, why_);
  if (ended_) tell_collector();
}

void Ending::handle(const Control& message, int sender) {
  notice_pause();
  heard_[static_cast<size_t>(sender)] = Clock::now();
  switch (message.kind) {
    case Control::Kind::kFailed:
      if (stopped_) runtime_.send_control(sender, Control::Kind::kStop, failed_rank_, why_);
      else if (!to_report_) to_report_ = Report{message.rank, message.text};
      break;
    case Control::Kind::kStop:
      if (stopped_) break;
      stopped_ = true;
      stopped_at_ = Clock::now();
      failed_rank_ = message.rank;
      why_ = message.text;
      collector_ = sender;
      unreported_.reset();
      to_report_.reset();
      runtime_.set_failed(failed_rank_, why_);
      if (ended_) tell_collector();
      break;
    case Control::Kind::kEnded:
      note_ended(sender);
      break;
    case Control::Kind::kRelease:
      released_ = true;
      break;
    case Control::Kind::kPing:
      runtime_.send_control(sender, Control::Kind::kPong, rank_);
      break;
    case Control::Kind::kPong:
    case Control::Kind::kGivenUp:
      break;
  }
}

void Ending::tell_collector() {
  if (collector_ == rank_) note_ended(rank_);
  else runtime_.send_control(collector_, Control::Kind::kEnded, rank_);
}

void Ending::note_ended(int rank) {
  ended_ranks_[static_cast<size_t>(rank)] = true;
  if (collector_ != rank_ || released_) return;
  if (std::find(ended_ranks_.begin(), ended_ranks_.end(), false) != ended_ranks_.end()) return;
  released_ = true;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) runtime_.send_control(peer, Control::Kind::kRelease, rank_);
}

void Ending::poll() {
  if (released_) return;
  const Clock::time_point now = Clock::now();
  notice_pause();
  if (to_report_ && now >= quiet_until_) report();
  if (unreported_ && now - asked_at_ > kAnswer) {
    ++candidate_;
    ask_reporter();
    return;
  }
  // Others than the reporter wait longer: it is the reporter's to decide, unless it is gone too.
  if (stopped_ && now - stopped_at_ > (reporter_ ? kGrace : 3 * kGrace)) abort_run();
  if (ended_ && !stopped_ && !unreported_) check_alive();
}

// A rank that has ended waits for those that have not, for as long as they compute: rank 0 may encode a video. So it
// asks them now and then whether they are there, which a stopped process does not answer.
void Ending::check_alive() {
  const Clock::time_point now = Clock::now();
  const Seconds timeout(timeout_seconds_);
  const bool ping = now - pinged_at_ > timeout / 4;
  if (ping) pinged_at_ = now;
  for (int peer = 0; peer < size_; ++peer) {
    const auto index = static_cast<size_t>(peer);
    const bool awaited = collector_ == rank_ ? !ended_ranks_[index] : peer == collector_;
    if (!awaited || peer == rank_) continue;
    if (ping) runtime_.send_control(peer, Control::Kind::kPing, rank_);
    if (now - heard_[index] <= timeout) continue;
    unreported_ = fmt::format("rank {} waited {:g} s for rank {} in 'end of the run': it does not answer", rank_,
                              timeout_seconds_, peer);
    ask_reporter();
    return;
  }
}

void Ending::abort_run() {
  remove_unfinished_files();
  MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace zoetrope::comm::mpi
