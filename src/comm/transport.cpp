#include "comm/transport.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace zoetrope::comm {

void check_pieces(std::span<const Segment> pieces, int ranks, const char* operation) {
  for (const Segment& piece : pieces) {
    if (piece.peer < 0 || piece.peer >= ranks)
      fail("'{}' names rank {}; the communicator has ranks 0 to {}", operation, piece.peer, ranks - 1);
    if (piece.data == nullptr && piece.bytes > 0)
      fail("'{}' has a piece of {} bytes at no address; say where they are", operation, piece.bytes);
  }
}

void check_body(const std::function<void(Communicator&)>& body) {
  if (!body) fail("there is nothing for the ranks to run; give a function");
}

int member(std::span<const int> members, int rank) {
  if (rank < 0 || rank >= std::ssize(members))
    fail("rank {} is none of the communicator's; it has ranks 0 to {}", rank, std::ssize(members) - 1);
  return members[static_cast<size_t>(rank)];
}

SplitGroup gather_split(Communicator& parent, int color, int key, int64_t ticket) {
  struct Entry {
    int color;
    int key;
    int64_t ticket;
  };
  const Entry mine{color, key, ticket};
  std::vector<Entry> all(static_cast<size_t>(parent.size()));
  parent.all_gather(&mine, all.data(), sizeof mine, "split");

  SplitGroup group;
  group.ticket = all[0].ticket;
  for (int rank = 0; rank < parent.size(); ++rank)
    if (all[static_cast<size_t>(rank)].color == color) group.members.push_back(rank);
  std::stable_sort(group.members.begin(), group.members.end(),
                   [&](int a, int b) { return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key; });
  group.rank =
      static_cast<int>(std::find(group.members.begin(), group.members.end(), parent.rank()) - group.members.begin());
  return group;
}

double Deadline::checked(double seconds) {
  if (!(seconds >= 0)) fail("timeout_seconds={}: must be at least 0", seconds);
  return seconds;
}

std::chrono::steady_clock::time_point deadline_after(double seconds, std::chrono::steady_clock::time_point from) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, 1e8));
  return from + std::chrono::duration_cast<Clock::duration>(wait);
}

std::string at_step(const std::string& step) { return step.empty() ? std::string() : " at " + step; }

bool is_stopped(const StopState& state) {
  return state.stopped || (state.parent != nullptr && is_stopped(*state.parent));
}

void throw_if_stopped(const StopState& state, const char* operation) {
  if (is_stopped(state)) throw Error(fmt::format("'{}' was stopped", operation));
}

std::string timeout_message(int rank, double seconds, int peer, const std::string& operation, const std::string& step,
                            const std::string& detail) {
  return fmt::format("rank {} waited {:g} s for rank {} in '{}'{}: {}", rank, seconds, peer, operation, at_step(step),
                     detail);
}

std::string stopped_message(int rank, const std::string& operation, int failed_rank, const std::string& why) {
  return fmt::format("rank {} stopped in '{}' because rank {} failed: {}", rank, operation, failed_rank, why);
}

}  // namespace zoetrope::comm
