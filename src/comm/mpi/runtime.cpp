#include "comm/mpi/runtime.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <set>
#include <utility>

#include "base/available_cores.h"
#include "base/error.h"
#include "comm/mpi/ending.h"
#include "comm/mpi/library_settings.h"
#include "comm/transport.h"
#include "trace/trace.h"

#if defined(__SANITIZE_ADDRESS__)
// The leak sanitizer looks after MPI_Finalize, when Open MPI has closed its components, and could not tell their leaks
// from ours; so under it nothing is unloaded.
extern "C" int dlclose(void*) { return 0; }
#endif

namespace zoetrope::comm::mpi {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kControlTag = 0;
// A call of the MPI library that takes this much CPU time has moved data (a quiet one takes 1), and the next one
// probably will too. CPU time, because the library gives up its core where it finds nothing, and so may return much
// later.
constexpr int64_t kBusyCallNs = 5000;
// Between calls that moved nothing: a fraction of the time since something did, within these limits. A poll with its
// two context switches costs about 5 µs of a core on which some rank computes: 4 ranks on 2 cores at 100 ms a hop spent
// 2.4 % of their CPU time on polls every 400 µs (20 µs where the rank waits), and 1.1 to 2.2 % with these.
constexpr int kNapFraction = 8;
constexpr auto kShortestNap = microseconds(20);
constexpr auto kLongestNap = milliseconds(5);           // while the rank computes
constexpr auto kLongestWaitingNap = microseconds(200);  // while it waits; later a two-hundredth of its wait so far,
constexpr int kWaitingNapFraction = 200;                // up to kLongestNap
// While the rank waits and its core is otherwise idle: polls without sleeping first.
constexpr int kEagerPolls = 100;
// For each byte that an exchange sends or receives: twice what a link of a gigabit takes in both directions at once.
constexpr auto kHeldForAByte = std::chrono::nanoseconds(8);
// Until a buffer that the rank is about to free is not in use any more, where its peer may have ended.
constexpr std::chrono::duration<double> kPatience(1);
// Seconds in which a peer answers that has too little of a core.
constexpr double kAnswer = 4;
// What nobody will receive is dropped for as long: it was sent before the sender heard of it, or has said so.
constexpr auto kDropFor = milliseconds(10000);
// Between two looks for it.
constexpr auto kBetweenDrops = milliseconds(20);
// Communicators that went away last, whose messages may still arrive.
constexpr size_t kMostClosed = 256;
// Without messages in transit: how often control messages are polled.
constexpr auto kIdleSleep = milliseconds(20);

std::string mpi_error(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

int64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Cores that the ranks of one host can use at once, bound to cores of their own or not; collective over them.
int cores_of(MPI_Comm host) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);  // stays empty where the host has more cores than the set
  MPI_Allreduce(MPI_IN_PLACE, &set, sizeof set, MPI_BYTE, MPI_BOR, host);
  AvailableCores cores = available_cores();
  cores.affinity = std::max(CPU_COUNT(&set), cores.affinity);
  return cores.threads();
}

Runtime* g_runtime = nullptr;  // for started() only

}  // namespace

Runtime& Runtime::instance() {
  static Runtime runtime;
  return runtime;
}

bool Runtime::started() { return g_runtime != nullptr; }

Runtime::Runtime() {
  thread_ = std::thread([this] { run(); });
  Lock lock(mutex_);
  done_.wait(lock, [&] { return initialised_; });
  lock.unlock();
  if (!initialise_error_.empty()) {
    thread_.join();
    throw Error(initialise_error_);
  }
  g_runtime = this;
}

// Reached with MPI running only where the program exits in the middle: MPI_Finalize would wait for ranks that wait for
// this one, so mpirun is left to end them.
Runtime::~Runtime() {
  {
    const std::lock_guard lock(mutex_);
    abandon_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  g_runtime = nullptr;
}

void Runtime::run() {
  // Timer slack, 50 µs by default, would add itself to every short sleep.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  try {
    initialise();
  } catch (const Error& error) {
    initialise_error_ = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    initialised_ = true;
    done_.notify_all();
  }
  if (!initialise_error_.empty()) return;
  loop();
  const std::lock_guard lock(mutex_);
  finished_ = true;
  done_.notify_all();
}

void Runtime::initialise() {
  int running = 0;
  MPI_Initialized(&running);
  owns_mpi_ = running == 0;
  int provided = MPI_THREAD_SINGLE;
  if (owns_mpi_) {
    choose_library_settings();
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_FUNNELED)
      fail("MPI does not start with MPI_THREAD_FUNNELED, which its progress thread needs");
  } else {
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE)
      fail(
          "MPI was initialised by the program without MPI_THREAD_MULTIPLE, which is needed next to calls of its own; "
          "call MPI_Init_thread with it, or let mpi_world() initialise MPI");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int neighbours = 1;
  MPI_Comm_size(host, &neighbours);
  cores_to_spare_ = neighbours <= cores_of(host);
  MPI_Comm_free(&host);
  for (MPI_Comm* comm : {&data_, &control_}) {
    MPI_Comm_dup(MPI_COMM_WORLD, comm);
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  largest_tag_ = found != 0 ? *static_cast<int*>(value) : 32767;
  const Home mine = home_here();
  std::vector<Home> homes(static_cast<size_t>(size_));
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, homes.data(), sizeof mine, MPI_BYTE, control_);
  watch_ = std::make_unique<Watch>(rank_, std::move(homes));
  ending_ = std::make_unique<Ending>(*this, rank_, size_);
  receive_control();
}

void Runtime::finalise() {
  std::optional<FinaliseLimit> limit;
  // A program with an MPI of its own ends that later; where the others wait for this process it would not come to it.
  if (owns_mpi_ || ending_->failed_alone()) ending_->meet(control_);
  if (owns_mpi_) {
    if (auto seconds = ending_->end_limit()) limit.emplace(*std::move(seconds));
  }
  for (size_t i = 0; i < requests_.size(); ++i)
    if (slots_[i].control_receive) {
      MPI_Cancel(&requests_[i]);
      MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);
    } else if (slots_[i].control != nullptr) {
      // Sent eagerly: completes without the receiver. The last of them releases the others.
      MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);
    }
  // Data that was not received after a failure is left to MPI_Finalize.
  if (owns_mpi_) {
    MPI_Finalize();
    return;
  }
  for (MPI_Comm* comm : {&data_, &control_}) MPI_Comm_free(comm);
}

void Runtime::loop() {
  while (true) {
    std::vector<std::shared_ptr<Exchange>> submitted, cancelled;
    {
      const std::lock_guard lock(mutex_);
      if (abandon_) return;
      if (finish_ && submitted_.empty() && background_.empty()) break;
      // Both at once: what is cancelled has begun.
      submitted.swap(submitted_);
      cancelled.swap(cancelled_);
    }
    for (const std::shared_ptr<Exchange>& exchange : submitted) {
      if (exchange->background) background_.push_back(exchange);
      else start(exchange);
    }
    const bool started = start_background(!cancelled.empty()) || !submitted.empty();  // what is cancelled has begun
    cancel_requests(cancelled);
    drop_unwanted();
    const bool moved = poll() || started;
    {
      const std::lock_guard lock(mutex_);
      if (const auto text = std::exchange(stalled_, std::nullopt)) ending_->stalled(*text);
      if (const auto end = std::exchange(body_end_, std::nullopt))
        ending_->body_ended(end->failure, end->timeout_seconds);
      if (!waits_.empty()) ask(waits_.front().begin, waits_.front().timeout_seconds);
      ending_->poll();
      if (ending_->released()) done_.notify_all();
    }
    pause(moved);
  }
  finalise();
}

// Whether anything moved.
bool Runtime::poll() {
  const size_t before = requests_.size();
  const int64_t begin = thread_cpu_ns();
  test();
  return requests_.size() != before || thread_cpu_ns() - begin > kBusyCallNs;
}

// Between two polls. New work and a rank that begins to wait end the pause.
void Runtime::pause(bool moved) {
  if (moved) {
    quiet_polls_ = 0;
    return;
  }
  const Clock::time_point now = Clock::now();
  if (quiet_polls_++ == 0) quiet_since_ = now;
  const bool idle = std::none_of(slots_.begin(), slots_.end(),
                                 [](const Slot& slot) { return slot.exchange != nullptr || slot.dropped != nullptr; });
  Lock lock(mutex_);
  if (std::exchange(wait_began_, false)) {
    quiet_polls_ = 1;
    quiet_since_ = now;
  }
  if (!submitted_.empty() || !cancelled_.empty() || body_end_ || finish_ || abandon_) return;
  if (idle) {
    work_.wait_for(lock, kIdleSleep);
  } else if (rank_waits_ && cores_to_spare_ && quiet_polls_ < kEagerPolls) {
    lock.unlock();
    std::this_thread::yield();
  } else {
    work_.wait_for(lock, nap(now));
  }
}

Clock::duration Runtime::nap(Clock::time_point now) const {
  const Clock::duration quiet = now - quiet_since_;
  const Clock::duration longest =
      rank_waits_ ? std::clamp<Clock::duration>(quiet / kWaitingNapFraction, kLongestWaitingNap, kLongestNap)
                  : kLongestNap;
  return std::clamp<Clock::duration>(quiet / kNapFraction, kShortestNap, longest);
}

void Runtime::start(const std::shared_ptr<Exchange>& exchange) {
  // Receives first, so that what is sent among these ranks finds its place at once.
  for (const bool sends : {false, true})
    for (size_t i = 0; i < exchange->pieces.size(); ++i) {
      const Piece& piece = exchange->pieces[i];
      if (piece.sends != sends || piece.local) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      const int bytes = static_cast<int>(piece.bytes);
      const int code = sends ? MPI_Isend(piece.data, bytes, MPI_BYTE, piece.peer, exchange->tag, data_, &request)
                             : MPI_Irecv(piece.data, bytes, MPI_BYTE, piece.peer, exchange->tag, data_, &request);
      ZT_CHECK(code == MPI_SUCCESS, "{}", mpi_error(code));
      requests_.push_back(request);
      slots_.push_back({.exchange = exchange, .piece = i, .control = {}, .dropped = {}});
    }
}

// While exchanges of other communicators are under way, background ones wait; but for no longer than kHeldForAByte
// says, because the peer of such an exchange may need what is held here before it gets as far. Whether any began.
bool Runtime::start_background(bool at_once) {
  const Clock::time_point now = Clock::now();
  const bool held = !at_once && std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.exchange != nullptr && !slot.exchange->background &&
           now < slot.exchange->posted + slot.exchange->bytes * kHeldForAByte;
  });
  if (held || background_.empty()) return false;
  for (const std::shared_ptr<Exchange>& exchange : std::exchange(background_, {})) start(exchange);
  return true;
}

void Runtime::receive_control() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kControlTag, control_, &request);
  requests_.push_back(request);
  slots_.push_back({.exchange = {}, .control = {}, .control_receive = true, .dropped = {}});
}

void Runtime::send_control(int peer, Control::Kind kind, int about_rank, const std::string& text, int tag,
                           bool stalled) {
  auto message = std::make_unique<Control>();
  message->kind = kind;
  message->rank = about_rank;
  message->tag = tag;
  message->stalled = stalled;
  if (kind == Control::Kind::kPong) message->activity = activity(main_wait());
  const size_t used = offsetof(Control, text) + text.copy(message->text, sizeof message->text - 1) + 1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(message.get(), static_cast<int>(used), MPI_BYTE, peer, kControlTag, control_, &request);
  requests_.push_back(request);
  slots_.push_back({.exchange = {}, .control = std::move(message), .dropped = {}});
}

void Runtime::test() {
  const int count = static_cast<int>(requests_.size());
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int completed = 0;
  const int code = MPI_Testsome(count, requests_.data(), &completed, indices_.data(), statuses_.data());
  if (completed == MPI_UNDEFINED || completed <= 0) return;
  // Taken out before they are handled: handling may add requests.
  std::vector<Slot> finished;
  size_t kept = 0;
  std::vector<bool> gone(requests_.size());
  for (int i = 0; i < completed; ++i) {
    const auto index = static_cast<size_t>(indices_[static_cast<size_t>(i)]);
    finished.push_back(std::move(slots_[index]));
    gone[index] = true;
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (gone[i]) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      slots_[kept] = std::move(slots_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  slots_.resize(kept);
  for (int i = 0; i < completed; ++i) {
    const MPI_Status& status = statuses_[static_cast<size_t>(i)];
    complete(finished[static_cast<size_t>(i)], status, code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS);
  }
}

void Runtime::complete(Slot& slot, const MPI_Status& status, int error) {
  const std::lock_guard lock(mutex_);
  if (slot.control_receive) {
    const Control message = incoming_;
    receive_control();
    if (message.kind == Control::Kind::kGivenUp) dropped_[{status.MPI_SOURCE, message.tag}] = Clock::now() + kDropFor;
    ending_->handle(message, status.MPI_SOURCE);
    if (ending_->released()) done_.notify_all();
    return;
  }
  if (slot.exchange == nullptr) return;
  Exchange& exchange = *slot.exchange;
  Piece& piece = exchange.pieces[slot.piece];
  if (!piece.sends && !exchange.cancelled) {
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    int code_class = MPI_SUCCESS;
    MPI_Error_class(error, &code_class);
    if (code_class == MPI_ERR_TRUNCATE || (error == MPI_SUCCESS && static_cast<size_t>(received) != piece.bytes))
      exchange.error = fmt::format("rank {} sends {} bytes where rank {} expects {} bytes in '{}'", piece.peer,
                                   code_class == MPI_ERR_TRUNCATE ? "more" : std::to_string(received), rank_,
                                   piece.bytes, exchange.name);
    else if (error != MPI_SUCCESS)
      exchange.error = fmt::format("receiving from rank {} in '{}': {}", piece.peer, exchange.name, mpi_error(error));
  } else if (error != MPI_SUCCESS && !exchange.cancelled) {
    exchange.error = fmt::format("sending to rank {} in '{}': {}", piece.peer, exchange.name, mpi_error(error));
  }
  piece.done = true;
  note_done(exchange);
  if (exchange.unfinished == 0 || exchange.cancelled || !exchange.error.empty()) done_.notify_all();
}

void Runtime::note_done(Exchange& exchange) {
  if (--exchange.unfinished > 0 || exchange.trace == nullptr || exchange.cancelled) return;
  std::vector<trace::Message> messages;
  for (const Piece& piece : exchange.pieces) {
    if (piece.local) continue;
    // Communicators that have two ranks in common have tags of their own.
    const uint64_t sequence = static_cast<uint64_t>(exchange.tag) << 32 | piece.number;
    if (piece.sends) messages.push_back({rank_, piece.peer, sequence});
    else messages.push_back({piece.peer, rank_, sequence});
  }
  exchange.trace->record_transfer(exchange.name, rank_, exchange.posted, Clock::now(), exchange.bytes,
                                  std::move(messages));
}

void Runtime::cancel_requests(const std::vector<std::shared_ptr<Exchange>>& cancelled) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Exchange>& exchange : cancelled) {
    std::set<int> peers;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].exchange != exchange) continue;
      const Piece& piece = exchange->pieces[slots_[i].piece];
      if (piece.sends) peers.insert(piece.peer);
      else MPI_Cancel(&requests_[i]);
    }
    for (const int peer : peers) send_control(peer, Control::Kind::kGivenUp, rank_, {}, exchange->tag);
  }
}

// Receives what senders have given up, whose buffers are in use until then, and what nobody here will receive.
void Runtime::drop_unwanted() {
  std::vector<std::pair<int, int>> senders_and_tags;
  {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (now - dropped_at_ < kBetweenDrops) return;
    dropped_at_ = now;
    std::erase_if(dropped_, [&](const auto& entry) { return entry.second < now; });
    for (const auto& [from, until] : dropped_) senders_and_tags.push_back(from);
  }
  if (senders_and_tags.empty()) return;
  // After a failure there are hundreds of tags, and where ranks share cores each question gives the core up.
  int any = 0;
  if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, data_, &any, MPI_STATUS_IGNORE) == MPI_SUCCESS && any == 0) return;
  for (const auto& [sender, tag] : senders_and_tags) {
    int found = 1;
    while (found != 0) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      MPI_Request request = MPI_REQUEST_NULL;
      int bytes = 0;
      int code = MPI_Improbe(sender, tag, data_, &found, &message, &status);
      if (code == MPI_SUCCESS && found == 0) break;
      if (code == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &bytes);
      // Not cleared: no page of it is used before the message arrives.
      std::unique_ptr<std::byte[]> nobodys(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
      if (code == MPI_SUCCESS && nobodys != nullptr)
        code = MPI_Imrecv(nobodys.get(), bytes, MPI_BYTE, &message, &request);
      if (code != MPI_SUCCESS || nobodys == nullptr) {
        const std::lock_guard lock(mutex_);
        const std::string why = nobodys == nullptr ? fmt::format("no memory for {} bytes", bytes) : mpi_error(code);
        if (failed_rank_ >= 0) return;
        set_failed(rank_, fmt::format("a message that nobody waits for could not be dropped: {}", why));
        return;
      }
      requests_.push_back(request);
      slots_.push_back({.exchange = {}, .control = {}, .dropped = std::move(nobodys)});
    }
  }
}

void Runtime::submit(const std::shared_ptr<Exchange>& exchange) {
  const std::lock_guard lock(mutex_);
  if (failed_rank_ >= 0) throw Error(stopped_message(rank_, exchange->name, failed_rank_, failure_));
  if (finish_) fail("'{}': {}", exchange->name, kFinished);
  throw_if_stopped(*exchange->stop, exchange->name);
  exchange->posted = Clock::now();
  if (!WatchingThread::is_this()) {
    last_change_ = exchange->posted;
    last_operation_ = exchange->name;
    given_up_.reset();
  }
  submitted_.push_back(exchange);
  work_.notify_all();
}

void Runtime::stop(StopState& state) {
  const std::lock_guard lock(mutex_);
  state.stopped = true;
  std::erase_if(closed_, [&](const Closed& closed) {
    if (is_stopped(*closed.parent)) drop_all(closed.tag);
    return is_stopped(*closed.parent);
  });
  done_.notify_all();
}

void Runtime::close(const std::shared_ptr<const StopState>& state, int tag) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (is_stopped(*state)) {
    drop_all(tag);
  } else if (state->parent != nullptr) {
    closed_.push_back({state->parent, tag});
    if (closed_.size() > kMostClosed) closed_.pop_front();
  }
}

// With the mutex held.
void Runtime::drop_all(int tag) {
  dropped_[{MPI_ANY_SOURCE, tag}] = Clock::now() + kDropFor;
  work_.notify_all();
}

void Runtime::cancel(const std::shared_ptr<Exchange>& exchange, double timeout_seconds) {
  Lock lock(mutex_);
  if (exchange->unfinished == 0 || finished_) return;
  exchange->cancelled = true;
  cancelled_.push_back(exchange);
  work_.notify_all();
  const auto is_in_use = [](const Piece& piece) { return !piece.done && !piece.local; };
  const auto in_use = [&] { return std::count_if(exchange->pieces.begin(), exchange->pieces.end(), is_in_use); };
  // What has begun to arrive cannot be cancelled, nor can a send, whose buffer a peer may read by itself; but both end
  // when the peer answers: it drops what it has not received yet. A peer that has not for as long as a wait lasts will
  // hardly do so now, nor in a run that has failed, whose processes are about to be killed.
  const Clock::time_point deadline =
      std::max(deadline_after(timeout_seconds, exchange->posted), deadline_after(std::min(timeout_seconds, kAnswer)));
  auto pieces = in_use();
  for (Clock::time_point moved = Clock::now(); pieces > 0;) {
    const Clock::time_point now = Clock::now();
    const bool waits = failed_rank_ < 0 && !exchange->timed_out && now < deadline;
    if (!waits && now - moved >= kPatience) break;
    done_.wait_for(lock, kPatience);
    if (const auto left = in_use(); left != pieces) {
      pieces = left;
      moved = Clock::now();
    }
  }
  if (pieces == 0 || failed_rank_ >= 0) return;
  // MPI may still read or write the memory. So nothing may come of what this process does from now on.
  const auto piece = std::find_if(exchange->pieces.begin(), exchange->pieces.end(), is_in_use);
  set_failed(piece->peer, fmt::format("it has not answered in '{}'", exchange->name));
}

void Runtime::complete_local(Exchange& exchange, size_t piece) {
  const std::lock_guard lock(mutex_);
  exchange.pieces[piece].done = true;
  note_done(exchange);
}

void Runtime::finish() {
  {
    const std::lock_guard lock(mutex_);
    finish_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool Runtime::finishing() {
  const std::lock_guard lock(mutex_);
  return finish_;
}

void Runtime::set_failed(int rank, const std::string& why) {
  failed_rank_ = rank;
  failure_ = why;
  done_.notify_all();
}

}  // namespace zoetrope::comm::mpi
