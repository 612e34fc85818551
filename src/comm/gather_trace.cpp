#include "comm/gather_trace.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "base/error.h"

namespace zoetrope::comm {
namespace {

using std::chrono::nanoseconds;

constexpr const char* kName = "trace";

// Where a rank records, comparable between processes.
struct Place {
  uint64_t clock = 0;  // of the kernel whose steady clock it reads; 0: unknown
  int64_t process = 0;
  uint64_t trace = 0;  // address
  int64_t bytes = 0;   // packed, to be sent
};

// Processes of one boot of one kernel read the same steady clock, in whatever containers they run, unless they were
// given a time namespace of their own.
uint64_t clock_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return 0;
  char space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/time", space, sizeof space - 1);
  if (length > 0) boot += space;
  const uint64_t hash = std::hash<std::string>()(boot);
  return hash != 0 ? hash : 1;
}

bool same_trace(const Place& a, const Place& b) {
  return a.clock == b.clock && a.process == b.process && a.trace == b.trace;
}

// The first of the ranks that share one trace speaks for all of them.
bool sends(const std::vector<Place>& places, int rank) {
  const auto own = static_cast<size_t>(rank);
  for (size_t lower = 0; lower < own; ++lower)
    if (same_trace(places[lower], places[own])) return false;
  return rank != 0;
}

int64_t exchange_number(Communicator& world, int peer, int64_t number, bool answers) {
  int64_t other = 0;
  const Segment send{peer, &number, sizeof number};
  const Segment receive{peer, &other, sizeof other};
  if (answers) world.exchange({&send, 1}, {}, kName).wait();
  else world.exchange({}, {&receive, 1}, kName).wait();
  return other;
}

void receive_from(Communicator& world, int rank, const std::vector<Place>& places, trace::Trace& trace) {
  const Place& place = places[static_cast<size_t>(rank)];
  const bool same_clock = place.clock != 0 && place.clock == places[0].clock;
  const ClockOffset offset = same_clock ? ClockOffset{} : clock_offset(world, rank);
  std::vector<char> packed(static_cast<size_t>(place.bytes));
  const Segment receive{rank, packed.data(), packed.size()};
  world.exchange({}, {&receive, 1}, kName).wait();
  trace.add_packed(packed, -offset.offset);
  if (same_clock) return;
  const std::string label = fmt::format("clock of another host, aligned to ±{:.0f} µs",
                                        std::chrono::duration<double, std::micro>(offset.uncertainty).count());
  for (int other = rank; other < world.size(); ++other)
    if (same_trace(places[static_cast<size_t>(other)], place)) trace.set_label(world.world_rank(other), label);
}

}  // namespace

ClockOffset clock_offset(Communicator& world, int peer, const ReadClock& clock) {
  constexpr int kRounds = 16;  // the fastest of which was not delayed
  const auto now = [&] { return std::chrono::duration_cast<nanoseconds>(clock().time_since_epoch()).count(); };
  ClockOffset best{nanoseconds{}, nanoseconds::max()};
  for (int round = 0; round < kRounds; ++round) {
    if (world.rank() != 0) {
      exchange_number(world, 0, 0, false);
      exchange_number(world, 0, now(), true);
      continue;
    }
    const int64_t asked = now();
    exchange_number(world, peer, 0, true);
    const int64_t read = exchange_number(world, peer, 0, false);
    const int64_t answered = now();
    const nanoseconds half((answered - asked + 1) / 2);
    if (half < best.uncertainty) best = {nanoseconds(read - asked) - half, half};
  }
  return best;
}

void gather_trace(Communicator& world, trace::Trace& trace) {
  if (world.size() == 1) return;
  Place mine{clock_identity(), getpid(), reinterpret_cast<uintptr_t>(&trace), 0};
  const std::vector<char> packed = trace.pack();
  mine.bytes = static_cast<int64_t>(packed.size());
  std::vector<Place> places(static_cast<size_t>(world.size()));
  world.all_gather(&mine, places.data(), sizeof mine, kName);
  for (int rank = 1; rank < world.size(); ++rank) {
    if (!sends(places, rank)) continue;
    if (world.rank() == 0) receive_from(world, rank, places, trace);
    if (world.rank() != rank) continue;
    const Place& first = places[0];
    if (mine.clock == 0 || mine.clock != first.clock) clock_offset(world, 0);
    const Segment send{0, const_cast<char*>(packed.data()), packed.size()};
    world.exchange({&send, 1}, {}, kName).wait();
  }
}

}  // namespace zoetrope::comm
