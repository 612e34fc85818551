// The in-process transport: posting, matching, copying, waiting. See world.h for which rank copies and why.
#include "zoetrope/communicator.h"

#include <algorithm>

#include "base/error.h"
#include "base/host_name.h"
#include "base/print.h"
#include "comm/inproc/world.h"
#include "comm/transport.h"
#include "device/copy_bytes.h"
#include "device/thread_team.h"
#include "trace/trace.h"

namespace zoetrope::comm::inproc {

using Lock = std::unique_lock<std::mutex>;
using trace::Clock;

namespace {

// Bytes copied between two checks whether another rank can help: above what copy_bytes() wants for its best path. 1, 2
// and 4 MiB cannot be told apart in an all-to-all of 1 to 64 MB, nor can ten times the spins, or none.
constexpr size_t kChunk = size_t{2} << 20;

}  // namespace

World::World(int rank_count, const RankOptions& run_options)
    : options(run_options),
      // 10 µs at most: a wake-up costs as much, a time slice of a core that a peer needs far more. Ten and forty times
      // this made barriers of two ranks on a busy machine 5 and 15 times longer, and no exchange of 16 MB faster.
      spins(rank_count <= available_threads() ? 200 : 0),
      ranks(static_cast<size_t>(rank_count)) {
  for (Rank& rank : ranks) rank.last_change = Clock::now();
}

void World::wake(int rank) {
  Rank& sleeper = ranks[static_cast<size_t>(rank)];
  sleeper.changes.fetch_add(1, std::memory_order_release);
  sleeper.changed.notify_all();
}

void World::set_failed(int rank, std::string why) {
  const std::lock_guard lock(mutex);
  if (failed_rank >= 0) return;
  failed_rank = rank;
  failure = std::move(why);
  for (int peer = 0; peer < static_cast<int>(ranks.size()); ++peer) wake(peer);
}

// The pieces of one exchange() call. Everything but the copies and the records happens under the world's mutex.
class Operation final : public Work::Operation {
 public:
  Operation(std::shared_ptr<World> world, std::shared_ptr<Group> group, std::shared_ptr<Counters> counters,
            std::shared_ptr<const StopState> stop, std::shared_ptr<const Deadline> deadline, trace::Trace* trace,
            int rank, const char* name)
      : world_(std::move(world)),
        group_(std::move(group)),
        counters_(std::move(counters)),
        stop_(std::move(stop)),
        deadline_(std::move(deadline)),
        trace_(trace),
        rank_(rank),
        world_rank_(group_->world_ranks[static_cast<size_t>(rank)]),
        name_(name) {}
  ~Operation() override;

  void post(std::span<const Segment> sends, std::span<const Segment> receives);
  void wait() override;
  // The piece that a wait lasts for, and whether this side receives or sends it; with the world's mutex held.
  struct Awaited {
    const Transfer::Side& own;
    const Transfer::Side& other;
    bool sends;
  };
  Awaited awaited() const;
  bool waits() const { return unfinished_ > 0; }
  const char* name() const { return name_; }
  std::thread::id waiting_thread() const { return waiting_thread_; }

 private:
  using Transfers = std::deque<std::shared_ptr<Transfer>>;

  void post_piece(const Segment& piece, bool sending);
  void match(const std::shared_ptr<Transfer>& transfer);
  static void finish(Transfer& transfer);
  bool copy_from(Lock& lock, Transfers& ready);
  void copy_ready(Lock& lock);
  bool sleep(Lock& lock, Clock::time_point deadline);
  void wait_locked(Lock& lock);
  void throw_if_failed() const;
  [[noreturn]] void throw_timeout(double timeout_seconds) const;
  void record(const char* lane, Clock::time_point begin) const;
  std::vector<trace::Message> messages() const;  // to and from other ranks, when all have ended

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Counters> counters_;
  const std::shared_ptr<const StopState> stop_;  // under the world's mutex
  const std::shared_ptr<const Deadline> deadline_;
  trace::Trace* const trace_;
  const int rank_;        // in the group
  const int world_rank_;  // in the job
  const char* const name_;
  std::vector<std::shared_ptr<Transfer>> transfers_;
  Transfers ready_receives_;  // matched and not yet claimed to the last byte
  Transfers ready_sends_;
  size_t unfinished_ = 0;
  int64_t bytes_ = 0;                    // to and from other ranks
  Clock::time_point posted_, finished_;  // finished_: for the trace
  std::string error_;
  std::thread::id waiting_thread_;
};

void Operation::post(std::span<const Segment> sends, std::span<const Segment> receives) {
  Lock lock(world_->mutex);
  throw_if_failed();
  throw_if_stopped(*stop_, name_);
  World::Rank& self = world_->ranks[static_cast<size_t>(world_rank_)];
  self.last_operation = name_;
  transfers_.reserve(sends.size() + receives.size());
  self.last_change = posted_ = Clock::now();
  for (const Segment& piece : sends) post_piece(piece, true);
  for (const Segment& piece : receives) post_piece(piece, false);
  if (ready_receives_.empty()) return;
  const Clock::time_point begin = Clock::now();
  while (copy_from(lock, ready_receives_)) {
  }
  lock.unlock();
  record(trace::kCopyLane, begin);
}

void Operation::post_piece(const Segment& piece, bool sending) {
  Transfers& channel = sending ? group_->channel(rank_, piece.peer) : group_->channel(piece.peer, rank_);
  const auto other_side_waits = [&] {
    if (channel.empty()) return false;
    return sending ? channel.front()->receiver.posted : channel.front()->sender.posted;
  };
  std::shared_ptr<Transfer> transfer;
  const bool matches = other_side_waits();
  if (matches) {
    transfer = std::move(channel.front());
    channel.pop_front();
  } else {
    transfer = std::make_shared<Transfer>();
    transfer->number = world_->transfers++;
    channel.push_back(transfer);
    // Named before it posts, for messages about its absence.
    (sending ? transfer->receiver : transfer->sender).world_rank = group_->world_ranks[static_cast<size_t>(piece.peer)];
  }
  (sending ? transfer->sender : transfer->receiver) = {this, true, piece.bytes, world_rank_, name_};
  if (sending) transfer->source = static_cast<const std::byte*>(piece.data);
  else transfer->destination = static_cast<std::byte*>(piece.data);
  transfers_.push_back(transfer);
  ++unfinished_;
  if (piece.peer != rank_) {
    bytes_ += static_cast<int64_t>(piece.bytes);
    (sending ? counters_->bytes_sent : counters_->bytes_received) += static_cast<int64_t>(piece.bytes);
  }
  if (matches && !transfer->dropped) match(transfer);
}

// Both sides are here.
void Operation::match(const std::shared_ptr<Transfer>& transfer) {
  Transfer::Side& sender = transfer->sender;
  Transfer::Side& receiver = transfer->receiver;
  if (sender.bytes != receiver.bytes) {
    transfer->dropped = true;
    const std::string error =
        fmt::format("rank {} sends {} bytes in '{}' where rank {} expects {} bytes in '{}'", sender.world_rank,
                    sender.bytes, sender.name, receiver.world_rank, receiver.bytes, receiver.name);
    for (const Transfer::Side* side : {&sender, &receiver}) {
      side->operation->error_ = error;
      world_->wake(side->world_rank);
    }
    return;
  }
  if (sender.bytes == 0) {
    finish(*transfer);
    return;
  }
  receiver.operation->ready_receives_.push_back(transfer);
  sender.operation->ready_sends_.push_back(transfer);
  for (const Transfer::Side* side : {&sender, &receiver})
    if (side->operation != this) world_->wake(side->world_rank);
}

void Operation::finish(Transfer& transfer) {
  for (const Transfer::Side* side : {&transfer.sender, &transfer.receiver}) {
    Operation& operation = *side->operation;
    if (--operation.unfinished_ > 0) continue;
    if (operation.trace_ != nullptr) operation.finished_ = Clock::now();
    operation.world_->wake(side->world_rank);
  }
}

// Copies one chunk, with the lock released meanwhile; false where there is nothing to copy.
bool Operation::copy_from(Lock& lock, Transfers& ready) {
  while (!ready.empty() && (ready.front()->dropped || ready.front()->claimed == ready.front()->sender.bytes))
    ready.pop_front();
  if (ready.empty()) return false;
  const std::shared_ptr<Transfer> transfer = ready.front();
  const size_t bytes = transfer->sender.bytes;
  const size_t begin = transfer->claimed;
  const size_t count = std::min(kChunk, bytes - begin);
  transfer->claimed += count;
  ++transfer->copiers;
  lock.unlock();
  copy_bytes(transfer->destination + begin, transfer->source + begin, count);
  lock.lock();
  --transfer->copiers;
  transfer->copied += count;
  if (transfer->dropped) {
    // The rank that dropped it waits for the copiers.
    world_->wake(transfer->sender.world_rank);
    world_->wake(transfer->receiver.world_rank);
  } else if (transfer->copied == bytes) {
    finish(*transfer);
  }
  return true;
}

// Copies what is ready until nothing is; its own receives first.
void Operation::copy_ready(Lock& lock) {
  const Clock::time_point begin = Clock::now();
  bool copied = false;
  while (error_.empty() && world_->failed_rank < 0 &&
         (copy_from(lock, ready_receives_) || copy_from(lock, ready_sends_)))
    copied = true;
  if (!copied || trace_ == nullptr) return;
  lock.unlock();
  record(trace::kCopyLane, begin);
  lock.lock();
}

void Operation::wait() {
  const Clock::time_point begin = Clock::now();
  Lock lock(world_->mutex);
  World::Rank& self = world_->ranks[static_cast<size_t>(world_rank_)];
  waiting_thread_ = std::this_thread::get_id();
  self.waits.push_back(this);
  self.last_change = begin;
  try {
    wait_locked(lock);
  } catch (...) {
    std::erase(self.waits, this);
    throw;
  }
  std::erase(self.waits, this);
  const Clock::time_point end = self.last_change = Clock::now();
  lock.unlock();
  counters_->wait_seconds += std::chrono::duration<double>(end - begin).count();
  if (trace_ == nullptr) return;
  record(trace::kWaitLane, begin);
  trace_->record_transfer(name_, world_rank_, posted_, finished_, bytes_, messages());
}

std::vector<trace::Message> Operation::messages() const {
  std::vector<trace::Message> messages;
  for (const std::shared_ptr<Transfer>& transfer : transfers_) {
    const int sender = transfer->sender.world_rank, receiver = transfer->receiver.world_rank;
    if (sender != receiver) messages.push_back({sender, receiver, transfer->number});
  }
  return messages;
}

void Operation::wait_locked(Lock& lock) {
  const double timeout = deadline_->seconds();
  Clock::time_point deadline = deadline_after(timeout);
  while (true) {
    if (!error_.empty()) throw Error(error_);
    throw_if_failed();
    if (unfinished_ == 0) return;
    throw_if_stopped(*stop_, name_);
    if (!ready_receives_.empty() || !ready_sends_.empty()) {
      copy_ready(lock);
      continue;
    }
    if (sleep(lock, deadline)) continue;
    if (!deadline_->extends()) throw_timeout(timeout);
    const auto quiet = seconds_since_progress(world_->states(), world_rank_);
    if (!quiet || *quiet >= timeout) throw_timeout(timeout);
    deadline = deadline_after(timeout - *quiet);
  }
}

// Until something changes for this rank; false when the deadline passes.
bool Operation::sleep(Lock& lock, Clock::time_point deadline) {
  World::Rank& self = world_->ranks[static_cast<size_t>(world_rank_)];
  const uint32_t seen = self.changes.load(std::memory_order_relaxed);
  if (world_->spins > 0) {
    lock.unlock();
    for (int spin = 0; spin < world_->spins && self.changes.load(std::memory_order_acquire) == seen; ++spin)
      __builtin_ia32_pause();
    lock.lock();
  }
  return self.changed.wait_until(lock, deadline, [&] { return self.changes.load(std::memory_order_relaxed) != seen; });
}

void Operation::throw_if_failed() const {
  if (world_->failed_rank >= 0) throw Error(stopped_message(world_rank_, name_, world_->failed_rank, world_->failure));
}

// What has not been posted is the cause; a piece in flight is at most its consequence.
Operation::Awaited Operation::awaited() const {
  const auto unfinished = [](const auto& transfer) {
    return transfer->dropped || transfer->copied < transfer->sender.bytes;
  };
  const auto absent = [](const auto& transfer) { return !transfer->sender.posted || !transfer->receiver.posted; };
  auto found = std::find_if(transfers_.begin(), transfers_.end(), absent);
  if (found == transfers_.end()) found = std::find_if(transfers_.begin(), transfers_.end(), unfinished);
  ZT_CHECK(found != transfers_.end(), "'{}' has unfinished pieces and none of them is", name_);
  const Transfer& transfer = **found;
  const bool sends = transfer.sender.operation == this;
  return {sends ? transfer.sender : transfer.receiver, sends ? transfer.receiver : transfer.sender, sends};
}

std::vector<RankState> World::states() const {
  const std::string host = host_name();
  const Clock::time_point now = Clock::now();
  std::vector<RankState> all;
  for (const Rank& rank : ranks) {
    RankState& state = all.emplace_back();
    state.rank = static_cast<int>(all.size()) - 1;
    state.host = host;
    Activity& activity = state.activity;
    activity.set_operation(rank.last_operation != nullptr ? rank.last_operation : "");
    activity.set_step(rank.step);
    activity.seconds = std::chrono::duration<double>(now - rank.last_change).count();
    if (rank.ended) activity.kind = Activity::Kind::kEnded;
    const auto own = std::find_if(rank.waits.begin(), rank.waits.end(),
                                  [&](const Operation* wait) { return wait->waiting_thread() == rank.thread; });
    const auto wait = own != rank.waits.end() ? own : rank.waits.begin();
    if (wait == rank.waits.end() || !(*wait)->waits()) continue;
    const Operation::Awaited piece = (*wait)->awaited();
    activity.kind = Activity::Kind::kWaits;
    activity.peer = piece.other.world_rank;
    activity.bytes = static_cast<int64_t>(piece.own.bytes);
    activity.sends = piece.sends;
    activity.computes = own == rank.waits.end();
    activity.set_operation((*wait)->name());
  }
  return all;
}

void Operation::throw_timeout(double timeout_seconds) const {
  const Awaited piece = awaited();
  if (world_->stall_verdict.empty()) {
    const std::vector<RankState> states = world_->states();
    world_->stall_verdict = verdict(states, world_rank_, timeout_seconds);
    print_error_text(waits_table(states, world_rank_));
  }
  const std::string detail =
      fmt::format("its {} of {} bytes {}; {}", piece.sends ? "receive" : "send", piece.own.bytes,
                  piece.other.posted ? "did not end" : "was never posted", world_->stall_verdict);
  throw Error(timeout_message(world_rank_, timeout_seconds, piece.other.world_rank, name_,
                              world_->ranks[static_cast<size_t>(world_rank_)].step, detail));
}

void Operation::record(const char* lane, Clock::time_point begin) const {
  if (trace_ != nullptr) trace_->record(name_, world_rank_, lane, begin, Clock::now());
}

// After a wait that threw, or where the work was dropped: the buffers may go away with this operation, so nobody may
// touch them any more. Peers are not told here; they learn of the failure that is behind it, or run into the deadline.
Operation::~Operation() {
  Lock lock(world_->mutex);
  World::Rank& self = world_->ranks[static_cast<size_t>(world_rank_)];
  for (const std::shared_ptr<Transfer>& transfer : transfers_) {
    Transfer::Side& side = transfer->sender.operation == this ? transfer->sender : transfer->receiver;
    side.operation = nullptr;
    if (transfer->copied == transfer->sender.bytes && transfer->sender.posted && transfer->receiver.posted) continue;
    transfer->dropped = true;
    self.changed.wait(lock, [&] { return transfer->copiers == 0; });
  }
}

namespace {

class InprocCommunicator final : public Communicator {
 public:
  InprocCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank, trace::Trace* trace)
      : InprocCommunicator(world, std::move(group), rank, trace, std::make_shared<Deadline>(world->options)) {}
  InprocCommunicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank, trace::Trace* trace,
                     std::shared_ptr<Deadline> deadline)
      : world_(std::move(world)),
        group_(std::move(group)),
        rank_(rank),
        trace_(trace),
        counters_(std::make_shared<Counters>()),
        deadline_(std::move(deadline)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->world_ranks.size()); }
  int world_rank(int rank) const override { return member(group_->world_ranks, rank); }
  int ranks_in_this_process() const override { return size(); }

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override {
    for (const std::span<const Segment> pieces : {sends, receives}) check_pieces(pieces, size(), operation);
    auto work = std::make_unique<Operation>(world_, group_, counters_, stop_, deadline_, trace_, rank_, operation);
    work->post(sends, receives);
    return Work(std::move(work));
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const SplitGroup mine = gather_split(*this, color, key);
    std::vector<int> members;
    for (const int member : mine.members) members.push_back(world_rank(member));
    const std::lock_guard lock(world_->mutex);
    // Kept as long as its parent: a few hundred bytes a split, and no reference counting.
    std::shared_ptr<Group>& child = group_->children[{splits_++, color}];
    if (child == nullptr) child = std::make_shared<Group>(std::move(members));
    auto made =
        std::make_unique<InprocCommunicator>(world_, child, mine.rank, trace_, std::make_shared<Deadline>(deadline_));
    made->stop_->parent = stop_;
    return made;
  }

  Counters counters() const override { return *counters_; }
  void reset_counters() override { *counters_ = {}; }
  void set_trace(trace::Trace* trace) override { trace_ = trace; }

  void stop() override {
    const std::lock_guard lock(world_->mutex);
    stop_->stopped = true;
    world_->wake(world_rank(rank_));
  }

  void set_timeout(double seconds) override { deadline_->set(seconds); }

  void set_step(std::string step) override {
    const std::lock_guard lock(world_->mutex);
    World::Rank& self = world_->ranks[static_cast<size_t>(world_rank(rank_))];
    self.step = std::move(step);
    self.last_change = Clock::now();
  }

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Group> group_;
  const int rank_;
  trace::Trace* trace_;
  const std::shared_ptr<Counters> counters_;
  const std::shared_ptr<StopState> stop_ = std::make_shared<StopState>();
  const std::shared_ptr<Deadline> deadline_;
  int splits_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank,
                                                trace::Trace* trace) {
  return std::make_unique<InprocCommunicator>(std::move(world), std::move(group), rank, trace);
}

}  // namespace zoetrope::comm::inproc
