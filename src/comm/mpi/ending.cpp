#include "comm/mpi/ending.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/print.h"
#include "base/unfinished_files.h"

namespace zoetrope::comm::mpi {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kAnswer{4};  // a live process answers within milliseconds, a starved one within this
constexpr Seconds kGrace{5};   // from the failure until ranks that have not ended are killed
// The same where a rank is known not to go on, for the reporter and for the others.
constexpr Seconds kGraceStalled{2}, kGraceStalledOthers{3};
// After a stop: a process that does not answer for half of it is not waited for.
constexpr double kAnswerStopped = 2;
constexpr Seconds kGather{0.25};  // for the others to say what they do, when a process has ended
constexpr Seconds kPause{1};      // this long without a poll, and the process was stopped
constexpr std::chrono::seconds kQuiet{2};
constexpr Seconds kFinalise{2};       // to meet and for MPI_Finalize of ranks that run, where the run has failed
constexpr Seconds kFinaliseWell{10};  // the least elsewhere: many ranks may share a core
constexpr Seconds kMeetNap{0.001};    // between two looks whether all have met

}  // namespace

Ending::Ending(Runtime& runtime, int rank, int size)
    : runtime_(runtime),
      rank_(rank),
      size_(size),
      ended_ranks_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size)) {}

void Ending::note_failure() {
  alone_ = true;
  if (stopped_) return;
  stopped_ = reporter_ = true;
  stopped_at_ = Clock::now();
}

// A process that was stopped and goes on finds questions and deadlines that are old; before it reports any, it listens
// whether another rank has reported meanwhile.
void Ending::notice_pause() {
  const Clock::time_point now = Clock::now();
  if (now - polled_at_ > kPause) {
    quiet_until_ = now + kQuiet;
    runtime_.note_pause(now - polled_at_);
  }
  polled_at_ = now;
}

bool Ending::is_paused() const { return Clock::now() - polled_at_ > kPause; }

void Ending::stalled(const std::string& text) {
  notice_pause();
  if (stopped_ || unreported_) return;
  unreported_ = text;
  ask_reporter();
}

void Ending::body_ended(const std::string& failure, double timeout_seconds) {
  notice_pause();
  timeout_seconds_ = timeout_seconds;
  ended_ = true;
  std::fill(heard_.begin(), heard_.end(), Clock::now());
  pinged_at_ = Clock::now();
  // After a stop a failure is a consequence of the one that was printed.
  if (failure.empty() || stopped_) {
    tell_collector();
  } else if (!unreported_ && !to_report_) {
    unreported_ = failure;
    ask_reporter();
  }
}

// The candidates are asked in rank order, each once the one before has not answered in time. So all failed ranks agree
// on who prints as long as the live processes answer within kAnswer.
void Ending::ask_reporter() {
  asked_at_ = Clock::now();
  while (candidate_ < rank_ && runtime_.watch().is_silent(candidate_, timeout_seconds_)) ++candidate_;
  if (candidate_ != rank_) runtime_.send_control(candidate_, Control::Kind::kFailed, rank_, *unreported_);
  else if (!to_report_) to_report_ = Report{rank_, *unreported_};
}

void Ending::report() {
  const size_t sentence = to_report_->why.find('\n');
  stalled_ = sentence != std::string::npos;
  failed_rank_ = to_report_->rank;
  why_ = to_report_->why.substr(0, sentence);
  const std::string host = runtime_.watch().host_of(failed_rank_);
  if (!stalled_ && !host.empty()) why_ += fmt::format(" (rank {} on {})", failed_rank_, host);
  if (stalled_) print_error_text(to_report_->why.substr(sentence + 1));
  print_error("zoetrope: {}\n", printable(why_));
  to_report_.reset();
  stopped_ = reporter_ = true;
  stopped_at_ = Clock::now();
  collector_ = rank_;
  unreported_.reset();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) runtime_.send_control(peer, Control::Kind::kStop, failed_rank_, why_, 0, stalled_);
  runtime_.set_failed(failed_rank_, why_);
  if (ended_) tell_collector();
}

void Ending::handle(const Control& message, int sender) {
  notice_pause();
  heard_[static_cast<size_t>(sender)] = Clock::now();
  switch (message.kind) {
    case Control::Kind::kFailed:
      if (stopped_) runtime_.send_control(sender, Control::Kind::kStop, failed_rank_, why_, 0, stalled_);
      else if (!to_report_) to_report_ = Report{message.rank, message.text};
      break;
    case Control::Kind::kStop:
      if (stopped_) break;
      stopped_ = true;
      stalled_ = message.stalled;
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
      runtime_.watch().answered(sender, message.activity);
      break;
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
  if (runtime_.in_run() && !stopped_) look_for_ended_processes(now);
  if (to_report_ && now >= quiet_until_ && (!saw_ended_process_ || told_of_ended_process_)) report();
  if (unreported_ && now - asked_at_ > kAnswer) {
    ++candidate_;
    ask_reporter();
    return;
  }
  if (stopped_ && now - stopped_at_ > grace()) abort_run();
  if (stopped_ && stalled_ && collector_ == rank_) {
    runtime_.ask(stopped_at_, kAnswerStopped);
    if (only_silent_ones_run()) abort_run();
  }
  if (ended_ && !stopped_ && !unreported_) check_alive();
}

// Others than the reporter wait longer: it is the reporter's to decide, unless it is gone too.
Seconds Ending::grace() const {
  if (stalled_) return reporter_ ? kGraceStalled : kGraceStalledOthers;
  return reporter_ ? kGrace : 3 * kGrace;
}

std::optional<EndLimit> Ending::end_limit() const {
  // Ranks that have not ended together come here whenever they like.
  if (!released_ && !stopped_) return std::nullopt;
  if (stopped_) return EndLimit{std::max<Seconds>(grace() - (Clock::now() - stopped_at_), kFinalise), ""};
  Seconds limit = std::max(Seconds(timeout_seconds_), kFinaliseWell);
  // One of them says so: the collector, or where that is stopped the first of the others.
  const int second = collector_ == 0 ? 1 : 0;
  if (rank_ != collector_) limit += rank_ == second ? kAnswer : 2 * kAnswer;
  std::string why;
  if (rank_ == collector_ || rank_ == second) {
    why = fmt::format(
        "rank {} waited {:g} s at the end of the run for ranks that are stopped or gone; what the run wrote is "
        "complete",
        rank_, limit.count());
  }
  return EndLimit{limit, std::move(why)};
}

void Ending::meet(MPI_Comm all) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(all, &request) != MPI_SUCCESS) return;
  const std::optional<EndLimit> limit = end_limit();
  Seconds waited{0};
  Clock::time_point polled_at = Clock::now();
  for (int met = 0; MPI_Test(&request, &met, MPI_STATUS_IGNORE) == MPI_SUCCESS && met == 0;) {
    std::this_thread::sleep_for(kMeetNap);
    const Clock::time_point now = Clock::now();
    waited += std::min<Seconds>(now - std::exchange(polled_at, now), kPause);
    if (limit && waited > limit->seconds) abort_run(limit->why);
  }
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
    unreported_ = fmt::format("rank {} waited {:g} s for rank {} in 'end of the run': it does not answer\n", rank_,
                              timeout_seconds_, peer);
    ask_reporter();
    return;
  }
}

// Before any other failure is reported: where a process is killed, the launcher soon ends the others, which then speak
// of that.
void Ending::look_for_ended_processes(Clock::time_point now) {
  if (told_of_ended_process_) return;
  const std::optional<int> ended = runtime_.watch().ended_process(to_report_.has_value());
  if (!ended) return;
  if (!saw_ended_process_) {
    saw_ended_process_ = now;
    runtime_.ask(Clock::time_point(), kAnswerStopped);
  }
  if (now - *saw_ended_process_ < kGather) return;
  told_of_ended_process_ = true;
  to_report_.reset();
  unreported_ = runtime_.ended_process_text(*ended);
  ask_reporter();
}

bool Ending::only_silent_ones_run() const {
  for (int peer = 0; peer < size_; ++peer)
    if (!ended_ranks_[static_cast<size_t>(peer)] &&
        (peer == rank_ || !runtime_.watch().is_silent(peer, kAnswerStopped)))
      return false;
  return true;
}

void Ending::abort_run(const std::string& why) {
  remove_unfinished_files();
  print_and_exit_soon(why);
  MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace zoetrope::comm::mpi
