// Waits of the rank's threads: how long they last, what they tell the others, and what is said when one fails. The rest
// of Runtime is in runtime.cpp.
#include <algorithm>

#include "base/error.h"
#include "comm/mpi/ending.h"
#include "comm/mpi/runtime.h"
#include "comm/transport.h"

namespace zoetrope::comm::mpi {

namespace {

using Seconds = std::chrono::duration<double>;

// Of what a control message takes; the sentence is before it.
constexpr size_t kTable = 2200;
constexpr Seconds kPauseIsTold{2};

}  // namespace

bool Runtime::ready(const Exchange& exchange) const {
  return exchange.unfinished == 0 || !exchange.error.empty() || failed_rank_ >= 0 || is_stopped(*exchange.stop);
}

void Runtime::wait(Exchange& exchange, const Deadline& deadline) {
  Lock lock(mutex_);
  bool in_time = ready(exchange);
  if (!in_time) {
    const bool watches = WatchingThread::is_this();
    const std::thread::id thread = std::this_thread::get_id();
    const bool rank = !watches && exchange.rank_thread.value_or(thread) == thread;
    if (rank) {
      rank_waits_ = wait_began_ = true;
      work_.notify_all();
    }
    const Wait wait{&exchange, Clock::now(), deadline.seconds(), rank, watches};
    if (!watches) last_change_ = wait.begin;
    waits_.push_back(wait);
    in_time = ends_in_time(lock, wait, deadline);
    std::erase_if(waits_, [&](const Wait& other) { return other.exchange == &exchange; });
    if (rank) rank_waits_ = false;
    if (!in_time && !ready(exchange)) throw_timeout(wait);
    if (!watches) last_change_ = Clock::now();
  }
  if (!exchange.error.empty()) throw Error(exchange.error);
  if (failed_rank_ >= 0) throw Error(stopped_message(rank_, exchange.name, failed_rank_, failure_));
  if (exchange.unfinished > 0) throw_if_stopped(*exchange.stop, exchange.name);
}

// False when the deadline has passed: later where this process did not run for a while, or where waits go on while
// the rank does that is waited for.
bool Runtime::ends_in_time(Lock& lock, const Wait& wait, const Deadline& deadline) {
  Clock::duration paused = paused_;
  Clock::time_point end = deadline_after(wait.timeout_seconds, wait.begin);
  const auto is_ready = [&] { return ready(*wait.exchange); };
  while (!done_.wait_until(lock, end, is_ready)) {
    // How long a pause was that has just ended, the progress thread is about to tell.
    const auto told = [&] { return is_ready() || paused_ > paused || !ending_->is_paused(); };
    if (ending_->is_paused()) done_.wait_for(lock, kPauseIsTold, told);
    if (paused_ > paused) {
      end += paused_ - paused;
      paused = paused_;
      continue;
    }
    if (!deadline.extends()) return false;
    const auto quiet = seconds_since_progress(states(&wait, wait.timeout_seconds), rank_);
    if (!quiet || *quiet >= wait.timeout_seconds) return false;
    end = deadline_after(wait.timeout_seconds - *quiet);
  }
  return true;
}

// Small sends end without their receiver, so a receive says more.
const Piece& Runtime::awaited(const Exchange& exchange) {
  const auto unfinished = [](bool sends) {
    return [sends](const Piece& piece) { return !piece.done && piece.sends == sends; };
  };
  auto piece = std::find_if(exchange.pieces.begin(), exchange.pieces.end(), unfinished(false));
  if (piece == exchange.pieces.end())
    piece = std::find_if(exchange.pieces.begin(), exchange.pieces.end(), unfinished(true));
  ZT_CHECK(piece != exchange.pieces.end(), "'{}' has unfinished pieces and none of them is", exchange.name);
  return *piece;
}

const Runtime::Wait* Runtime::main_wait() const {
  const auto own = std::find_if(waits_.begin(), waits_.end(), [](const Wait& wait) { return wait.of_rank; });
  if (own != waits_.end()) return &*own;
  const auto other = std::find_if(waits_.begin(), waits_.end(), [](const Wait& wait) { return !wait.watches; });
  return other != waits_.end() ? &*other : nullptr;
}

Activity Runtime::activity(const Wait* wait) const {
  if (wait == nullptr && given_up_) {
    Activity given_up = *given_up_;
    given_up.seconds += Seconds(Clock::now() - last_change_).count();
    return given_up;
  }
  Activity activity;
  activity.set_operation(last_operation_);
  activity.set_step(step_);
  activity.seconds = Seconds(Clock::now() - last_change_).count();
  if (body_has_ended_) activity.kind = Activity::Kind::kEnded;
  if (wait == nullptr || wait->exchange->unfinished == 0) return activity;
  const Piece& piece = awaited(*wait->exchange);
  activity.kind = Activity::Kind::kWaits;
  activity.peer = piece.peer;
  activity.bytes = static_cast<int64_t>(piece.bytes);
  activity.sends = piece.sends;
  activity.computes = !wait->of_rank;
  activity.seconds = Seconds(Clock::now() - wait->begin).count();
  activity.set_operation(wait->exchange->name);
  return activity;
}

std::vector<RankState> Runtime::states(const Wait* wait, double timeout_seconds) const {
  return watch_->states(activity(wait), timeout_seconds);
}

void Runtime::throw_timeout(const Wait& wait) {
  const Piece& piece = awaited(*wait.exchange);
  const std::vector<RankState> all = states(&wait, wait.timeout_seconds);
  const std::string detail =
      fmt::format("{}; {}",
                  piece.sends ? fmt::format("it did not take the {} bytes sent to it", piece.bytes)
                              : fmt::format("its {} bytes did not arrive", piece.bytes),
                  verdict(all, rank_, wait.timeout_seconds));
  const std::string text = timeout_message(rank_, wait.timeout_seconds, piece.peer, wait.exchange->name, step_, detail);
  wait.exchange->timed_out = true;
  if (!wait.watches) {
    given_up_ = activity(&wait);
    last_change_ = Clock::now();
  }
  if (in_run_) {
    stalled_ = fmt::format("{}\n{}", text, waits_table(all, rank_, kTable));
    work_.notify_all();
  }
  throw Error(text);
}

std::string Runtime::ended_process_text(int rank) const {
  const std::vector<RankState> all = states(main_wait(), 0);
  return fmt::format("{}\n{}", verdict(all, rank, 0), waits_table(all, rank, kTable));
}

void Runtime::ask(Clock::time_point begin, double timeout_seconds) {
  for (const int peer : watch_->to_ask(begin, timeout_seconds)) send_control(peer, Control::Kind::kPing, rank_);
}

void Runtime::note_pause(Clock::duration pause) {
  paused_ += pause;
  watch_->paused();
  done_.notify_all();
}

void Runtime::set_step(std::string step) {
  const std::lock_guard lock(mutex_);
  step_ = std::move(step);
  last_change_ = Clock::now();
}

void Runtime::begin_run(double timeout_seconds) {
  const std::lock_guard lock(mutex_);
  in_run_ = true;
  ending_->begin(timeout_seconds);
}

bool Runtime::end_run(const std::string& failure, double timeout_seconds) {
  Lock lock(mutex_);
  body_end_ = BodyEnd{failure, timeout_seconds};
  body_has_ended_ = true;
  last_change_ = Clock::now();
  work_.notify_all();
  done_.wait(lock, [&] { return ending_->released(); });
  in_run_ = false;
  return !ending_->failed();
}

void Runtime::note_failure() {
  const std::lock_guard lock(mutex_);
  ending_->note_failure();
}

}  // namespace zoetrope::comm::mpi
