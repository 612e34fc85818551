// The MPI transport as a Communicator: pieces become messages of the runtime, those to the own rank are copied here.
#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <optional>
#include <thread>

#include "zoetrope/mpi.h"

#include "base/error.h"
#include "comm/mpi/runtime.h"
#include "comm/transport.h"
#include "device/copy_bytes.h"
#include "trace/trace.h"

namespace zoetrope::comm {
namespace mpi {
namespace {

// MPI counts in int. Both sides cut a piece alike, since their byte counts are equal.
constexpr size_t kLargestMessage = size_t{1} << 30;

// Worlds take the low tags, in the order of the calls of mpi_world(), which are collective; others take those above.
constexpr int kWorlds = 1 << 14;

// Rank 0 of what a communicator is made from chooses its tag, among tags that no other rank chooses. So threads may
// make several communicators at once, in another order on every rank.
int64_t choose_tag(Runtime& runtime) { return kWorlds + runtime.rank() + runtime.size() * runtime.chosen_tags++; }

int checked_tag(const Runtime& runtime, int64_t tag) {
  if (tag > runtime.largest_tag())
    fail("{} communicators have been made, and this MPI can tell no more apart", (tag - kWorlds) / runtime.size());
  return static_cast<int>(tag);
}

// Pieces from this rank to itself that wait for their other side, in the order posted: all sends or all receives.
using LocalQueue = std::deque<std::pair<std::shared_ptr<Exchange>, size_t>>;

class Operation final : public Work::Operation {
 public:
  Operation(std::shared_ptr<Exchange> exchange, std::shared_ptr<Counters> counters,
            std::shared_ptr<const Deadline> deadline)
      : exchange_(std::move(exchange)), counters_(std::move(counters)), deadline_(std::move(deadline)) {}
  ~Operation() override { Runtime::instance().cancel(exchange_, deadline_->seconds()); }

  void wait() override {
    const Clock::time_point begin = Clock::now();
    Runtime::instance().wait(*exchange_, *deadline_);
    const Clock::time_point end = Clock::now();
    counters_->wait_seconds += std::chrono::duration<double>(end - begin).count();
    if (exchange_->trace != nullptr)
      exchange_->trace->record(exchange_->name, Runtime::instance().rank(), trace::kWaitLane, begin, end);
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::shared_ptr<Counters> counters_;
  const std::shared_ptr<const Deadline> deadline_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const RankOptions& options, std::vector<int> members, int rank, int tag)
      : MpiCommunicator(std::make_shared<Deadline>(options), options.trace, std::move(members), rank, tag) {}
  MpiCommunicator(std::shared_ptr<Deadline> deadline, trace::Trace* trace, std::vector<int> members, int rank, int tag)
      : deadline_(std::move(deadline)),
        members_(std::move(members)),
        rank_(rank),
        tag_(tag),
        trace_(trace),
        counters_(std::make_shared<Counters>()),
        sent_(members_.size()),
        received_(members_.size()) {}
  ~MpiCommunicator() override {
    if (Runtime::started()) Runtime::instance().close(stop_, tag_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const override { return member(members_, rank); }
  int ranks_in_this_process() const override { return 1; }

  Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) override {
    for (const std::span<const Segment> pieces : {sends, receives}) check_pieces(pieces, size(), operation);
    auto exchange = std::make_shared<Exchange>();
    exchange->name = operation;
    exchange->tag = tag_;
    exchange->stop = stop_;
    exchange->rank_thread = rank_thread_;
    exchange->trace = trace_;
    exchange->background = background_;
    for (const Segment& segment : sends) add(*exchange, segment, true);
    for (const Segment& segment : receives) add(*exchange, segment, false);
    exchange->unfinished = exchange->pieces.size();
    for (const Piece& piece : exchange->pieces) exchange->bytes += piece.local ? 0 : static_cast<int64_t>(piece.bytes);
    Runtime::instance().submit(exchange);
    // Made before the local copies: they may throw, and the buffers must be taken back then.
    Work work(std::make_unique<Operation>(exchange, counters_, deadline_));
    for (size_t i = 0; i < exchange->pieces.size(); ++i)
      if (exchange->pieces[i].local) post_local(exchange, i);
    return work;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    // Groups of different colors share the tag, having no pair of ranks in common.
    Runtime& runtime = Runtime::instance();
    const SplitGroup group = gather_split(*this, color, key, rank_ == 0 ? choose_tag(runtime) : 0);
    const int tag = checked_tag(runtime, group.ticket);
    std::vector<int> members;
    for (const int member : group.members) members.push_back(world_rank(member));
    auto made = std::make_unique<MpiCommunicator>(std::make_shared<Deadline>(deadline_), trace_, std::move(members),
                                                  group.rank, tag);
    made->rank_thread_ = std::this_thread::get_id();
    made->stop_->parent = stop_;
    return made;
  }

  Counters counters() const override { return *counters_; }
  void reset_counters() override { *counters_ = {}; }
  void set_step(std::string step) override { Runtime::instance().set_step(std::move(step)); }
  void set_timeout(double seconds) override { deadline_->set(seconds); }
  void set_background() override { background_ = true; }
  void stop() override { Runtime::instance().stop(*stop_); }
  void set_trace(trace::Trace* trace) override { trace_ = trace; }

 private:
  void add(Exchange& exchange, const Segment& segment, bool sends) {
    const bool local = segment.peer == rank_;
    size_t begin = 0;
    do {
      const size_t bytes = local ? segment.bytes : std::min(kLargestMessage, segment.bytes - begin);
      exchange.pieces.push_back({.data = static_cast<std::byte*>(segment.data) + begin,
                                 .bytes = bytes,
                                 .peer = world_rank(segment.peer),
                                 .sends = sends,
                                 .local = local,
                                 .number = (sends ? sent_ : received_)[static_cast<size_t>(segment.peer)]++});
      begin += bytes;
    } while (begin < segment.bytes);
    if (!local) (sends ? counters_->bytes_sent : counters_->bytes_received) += static_cast<int64_t>(segment.bytes);
  }

  void post_local(const std::shared_ptr<Exchange>& exchange, size_t index) {
    const Piece& piece = exchange->pieces[index];
    while (!local_.empty() && local_.front().first->cancelled) local_.pop_front();  // their buffers are freed
    const bool meets = !local_.empty() && local_.front().first->pieces[local_.front().second].sends != piece.sends;
    if (!meets) {
      local_.emplace_back(exchange, index);
      return;
    }
    const auto [other_exchange, other_index] = local_.front();
    local_.pop_front();
    const Piece& other = other_exchange->pieces[other_index];
    const Piece& source = piece.sends ? piece : other;
    const Piece& destination = piece.sends ? other : piece;
    if (source.bytes != destination.bytes)
      fail("rank {0} sends {1} bytes in '{2}' where rank {0} expects {3} bytes in '{4}'", source.peer, source.bytes,
           (piece.sends ? exchange : other_exchange)->name, destination.bytes,
           (piece.sends ? other_exchange : exchange)->name);
    copy_bytes(destination.data, source.data, source.bytes);
    Runtime::instance().complete_local(*exchange, index);
    Runtime::instance().complete_local(*other_exchange, other_index);
  }

  const std::shared_ptr<Deadline> deadline_;
  const std::vector<int> members_;
  const int rank_;
  const int tag_;
  trace::Trace* trace_;
  bool background_ = false;
  const std::shared_ptr<Counters> counters_;
  const std::shared_ptr<StopState> stop_ = std::make_shared<StopState>();
  std::optional<std::thread::id> rank_thread_;  // that split it off
  LocalQueue local_;
  std::vector<uint64_t> sent_, received_;  // messages to and from each member
};

// World ranks of a communicator of the program's own.
std::vector<int> world_members(MPI_Comm comm) {
  int inter = 0;
  MPI_Comm_test_inter(comm, &inter);
  if (inter != 0) fail("wrap_mpi: the communicator joins two groups; bring an intracommunicator");
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  int size = 0;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_size(group, &size);
  std::vector<int> ranks(static_cast<size_t>(size)), members(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group_translate_ranks(group, size, ranks.data(), world, members.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  const auto outside = std::find(members.begin(), members.end(), MPI_UNDEFINED);
  if (outside != members.end())
    fail("wrap_mpi: rank {} of the communicator is not a process of MPI_COMM_WORLD", outside - members.begin());
  return members;
}

// On the caller's communicator, since the members have no other in common.
int agreed_tag(Runtime& runtime, MPI_Comm comm, int rank) {
  int64_t tag = rank == 0 ? choose_tag(runtime) : 0;
  MPI_Bcast(&tag, 1, MPI_INT64_T, 0, comm);
  return checked_tag(runtime, tag);
}

// Refuses what would wait for a progress thread that has ended.
void check_not_finished(const char* caller) {
  if (Runtime::started() && Runtime::instance().finishing()) fail("{}: {}", caller, Runtime::kFinished);
}

}  // namespace
}  // namespace mpi

bool mpi_available() { return true; }

std::unique_ptr<Communicator> mpi_world(const RankOptions& options) {
  static std::atomic<int> worlds = 0;
  mpi::check_not_finished("mpi_world");
  mpi::Runtime& runtime = mpi::Runtime::instance();
  const int tag = worlds++;
  if (tag >= mpi::kWorlds) fail("mpi_world() was called {} times; call it once and split", tag);
  std::vector<int> members(static_cast<size_t>(runtime.size()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<mpi::MpiCommunicator>(options, std::move(members), runtime.rank(), tag);
}

std::unique_ptr<Communicator> wrap_mpi(const void* mpi_comm, const RankOptions& options) {
  if (mpi_comm == nullptr) fail("wrap_mpi: no communicator was given; pass the address of an MPI_Comm");
  mpi::check_not_finished("wrap_mpi");
  int running = 0, ended = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&running);
  MPI_Finalized(&ended);
  if (ended != 0) fail("wrap_mpi: MPI is finalised; call MPI_Finalize after the last use of MPI");
  if (running == 0) fail("wrap_mpi: MPI is not initialised; call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE)
    fail("wrap_mpi: MPI was initialised without MPI_THREAD_MULTIPLE; call MPI_Init_thread with it");
  const MPI_Comm comm = *static_cast<const MPI_Comm*>(mpi_comm);
  if (comm == MPI_COMM_NULL) fail("wrap_mpi: the communicator is MPI_COMM_NULL; this rank is not a member of any");
  mpi::Runtime& runtime = mpi::Runtime::instance();
  std::vector<int> members = mpi::world_members(comm);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  const int tag = mpi::agreed_tag(runtime, comm, rank);
  return std::make_unique<mpi::MpiCommunicator>(options, std::move(members), rank, tag);
}

void start_mpi() {
  mpi::check_not_finished("start_mpi");
  mpi::Runtime::instance();
}

}  // namespace zoetrope::comm
