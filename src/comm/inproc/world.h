// The shared state of the ranks of one run: what each has posted, and which rank copies it. Private to the in-process
// transport.
//
// Which rank copies: the cores that compute also copy, so that a byte costs the same core time whenever it is copied;
// only waiting can be saved. Therefore:
//   - a receiver copies its own pieces, straight from the sender's memory: inside exchange() if the sender has
//     posted already, otherwise in its wait(). Each rank pays for what it receives, and the data is in its
//     cache;
//   - waiting ranks help: a rank in wait() also copies what it sends, in chunks of kChunk bytes, first come first
//     served. Once both sides have posted, no rank waits for a peer that computes, and two waiting ranks share the
//     work.
// Slower: the second rank to post copies everything at once, which delays the slower rank even more.
//
// One mutex per run guards all of it. It is locked for bookkeeping, never during a copy: with one lock per kChunk bytes
// no contention can be measured, and the code stays short.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "zoetrope/communicator.h"

#include "comm/stall.h"

namespace zoetrope::comm::inproc {

class Operation;

// One piece in transit, from the first side's post to the last copied byte.
struct Transfer {
  struct Side {
    Operation* operation = nullptr;  // null before it posts and after it is destroyed
    bool posted = false;
    size_t bytes = 0;
    int world_rank = 0;
    const char* name = nullptr;
  };
  Side sender;
  Side receiver;
  uint64_t number = 0;  // of the world's, for the trace
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  size_t claimed = 0;  // bytes that are being copied or have been
  size_t copied = 0;
  int copiers = 0;       // threads copying now
  bool dropped = false;  // one side was destroyed: nothing more is copied
};

// The members of one communicator and, for each (source, destination), the pieces that wait for their other side: all
// sends or all receives, in the order posted.
struct Group {
  explicit Group(std::vector<int> members)
      : world_ranks(std::move(members)), waiting(world_ranks.size() * world_ranks.size()) {}
  std::deque<std::shared_ptr<Transfer>>& channel(int source, int destination) {
    return waiting[static_cast<size_t>(source) * world_ranks.size() + static_cast<size_t>(destination)];
  }

  std::vector<int> world_ranks;
  std::vector<std::deque<std::shared_ptr<Transfer>>> waiting;
  // The groups split from this one, by (how many splits came before, color); the first member to arrive makes them.
  std::map<std::pair<int, int>, std::shared_ptr<Group>> children;
};

struct World {
  World(int ranks, const RankOptions& run_options);
  // Marks the run as failed and wakes all ranks. Only the first call counts.
  void set_failed(int rank, std::string why);
  void wake(int rank);  // with the mutex held
  // What every rank does; with the mutex held.
  std::vector<RankState> states() const;

  struct Rank {
    std::condition_variable changed;
    std::atomic<uint32_t> changes{0};  // grows with every wake, so that a short spin needs no lock
    // For the others, when they have waited too long for this one.
    const char* last_operation = nullptr;
    std::string step;
    std::chrono::steady_clock::time_point last_change;  // when it entered or left an operation or began a step
    std::thread::id thread;                             // its own; it may have others wait
    std::vector<const Operation*> waits;                // of all its threads
    bool ended = false;                                 // its body
  };

  const RankOptions options;
  const int spins;  // before a wait sleeps; 0 where ranks share cores
  std::mutex mutex;
  std::vector<Rank> ranks;
  uint64_t transfers = 0;  // begun so far
  int failed_rank = -1;
  std::string failure;
  // Once a wait has passed its deadline, and it was printed who waits for whom: which rank all wait for in the end.
  // Those that find the same a moment later would see that the first waits no longer.
  std::string stall_verdict;
};

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<World> world, std::shared_ptr<Group> group, int rank,
                                                trace::Trace* trace);

}  // namespace zoetrope::comm::inproc
