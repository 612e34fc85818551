// Ranks and the messages between them. The same program runs on every transport: ranks as threads of this process
// (run_ranks), as MPI processes (zoetrope/mpi.h), or over a Communicator that a program implements itself. A
// communicator moves bytes; it knows no tensors and no heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/api.h"
#include "zoetrope/trace.h"

namespace zoetrope::comm {

// One contiguous piece of a message. Messages between a pair of ranks match in the order they were posted; the byte
// counts of matching pieces must be equal. A piece of zero bytes is matched like any other. Where counts differ,
// run_ranks reports it; over MPI memory behind a receive that is too short may be overwritten before an Error says so,
// and a difference is not always found in pieces of 1 GiB and more.
struct Segment {
  int peer = 0;
  void* data = nullptr;  // not written by sends
  size_t bytes = 0;
};

struct Counters {
  int64_t bytes_sent = 0;      // to other ranks
  int64_t bytes_received = 0;  // from other ranks
  double wait_seconds = 0;     // spent inside Work::wait
};

// A posted operation. Must be waited for before its buffers are touched again (sent data: not changed; received: not
// read). One that is destroyed unfinished gives its messages up, for which a transport may wait as long as for any
// other: its buffers are free then, peers that wait for it get an Error or nothing at all, and the communicator is of
// no further use. Where a peer does not answer even so, all later waits of this process throw Error.
class [[nodiscard]] ZOETROPE_API Work {
 public:
  class Operation {
   public:
    virtual ~Operation() = default;
    virtual void wait() = 0;  // throws Error when the deadline passes or a peer has failed
  };

  Work() = default;
  explicit Work(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept = default;

  // Blocks until all pieces are sent and received, for RankOptions::timeout_seconds at most: then Error names this
  // rank, the peer, the operation and the step, and the rank at the end of the chain of waits with the operation that
  // it entered last. A second call does nothing.
  void wait();
  bool pending() const { return operation_ != nullptr; }

 private:
  std::unique_ptr<Operation> operation_;
};

class ZOETROPE_API Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank in the job, for messages to people: sub-communicators number their ranks from 0. Error for a rank that this
  // one does not have.
  virtual int world_rank(int rank) const = 0;
  // How many ranks of this communicator share the memory of this process, this one included.
  virtual int ranks_in_this_process() const = 0;

  // Posts all pieces at once. `operation` (a string literal) names them in time-out messages and traces. Pieces to and
  // from the own rank are allowed and are matched in order like any other.
  virtual Work exchange(std::span<const Segment> sends, std::span<const Segment> receives, const char* operation) = 0;

  // Ranks of equal color form a new communicator, ordered by key, then by rank. Collective. Threads of a rank may split
  // communicators of their own at once, as with exchange().
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Counts this communicator alone: those split from it have counters of their own.
  virtual Counters counters() const = 0;
  virtual void reset_counters() = 0;

  // What this rank is doing ("step 3, layer 7"), for time-out messages. Shared with the communicators split from this
  // one.
  virtual void set_step(std::string step) = 0;

  // From now on instead of RankOptions::timeout_seconds, here and on the communicators split from this one.
  virtual void set_timeout(double /*seconds*/) {}

  // Any thread: this rank's waits on this communicator and on those split from it, and those to come, throw Error
  // unless all has arrived. What was sent or received by then is undefined. Where all ranks stop, they can go on with
  // other communicators. A communicator that is not used by another thread need not do anything.
  virtual void stop() {}

  // Exchanges posted from now on may be delayed, for a bounded time, while other communicators of this process have
  // exchanges under way, so that those get the link first. A communicator need not do anything. Not inherited by those
  // split from this one.
  virtual void set_background() {}

  // Where this communicator, and those split from it afterwards, record waits and transfers; null: nowhere. Takes the
  // place of RankOptions::trace.
  virtual void set_trace(trace::Trace* trace) = 0;

  // Collective, built on exchange: all ranks call them in the same order. Each waits, and throws Error as Work::wait().
  void barrier();
  // `bytes` from every rank, in rank order, into `all` (size()·bytes).
  void all_gather(const void* mine, void* all, size_t bytes, const char* operation = "all_gather");
  // Pieces of unequal size: rank r's goes to receive[r]. `mine` is this rank's, copied to receive[rank()]; its peer is
  // not read.
  void all_gather_v(const Segment& mine, std::span<const Segment> receive, const char* operation = "all_gather");
  // As all_gather_v(), of pieces that have their place already: part r is rank r's, and this rank's own is filled.
  // Every rank gives the same size for part r; sizes of parts may differ, and empty ones are not sent.
  void all_gather_in_place(std::span<const Segment> parts, const char* operation = "all_gather");
  void broadcast(int root, void* data, size_t bytes, const char* operation = "broadcast");
  double all_reduce_max(double value);
  double all_reduce_min(double value);
  double all_reduce_sum(double value);  // in rank order: the same bits on every rank
};

struct RankOptions {
  double timeout_seconds = 300;   // of any one wait, at least 0
  trace::Trace* trace = nullptr;  // records waits and transfers
  // A wait goes on for as long as the rank at the end of the chain of waits goes on: it fails where that one has
  // entered no other operation and begun no other step for timeout_seconds, or does not answer.
  bool extends = false;
};

// Runs body(communicator) on n ≥ 1 threads and returns when all have ended. When a body throws, every other rank's
// pending and later waits throw too, and the first failure is rethrown here. Where a wait has passed its deadline, it
// is printed who waits for whom. A thread cannot be killed: where one has not returned 3 seconds after that, or
// timeout_seconds (at least 5) after another failure, the error is printed and the process exits with 1.
ZOETROPE_API void run_ranks(int n, const std::function<void(Communicator&)>& body, const RankOptions& options = {});

}  // namespace zoetrope::comm
