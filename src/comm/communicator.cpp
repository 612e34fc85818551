// The collectives that are the same on every transport, built on exchange(). No transport is known here.
#include "zoetrope/communicator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/words.h"

namespace zoetrope::comm {
namespace {

std::vector<double> value_of_each(Communicator& ranks, double mine, const char* operation) {
  std::vector<double> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(&mine, all.data(), sizeof mine, operation);
  return all;
}

void check_parts(std::span<const Segment> parts, int ranks, const char* operation) {
  if (std::ssize(parts) == ranks) return;
  fail("'{}' has {} for {}; give one of each rank", operation, counted(std::ssize(parts), "piece"),
       counted(ranks, "rank"));
}

}  // namespace

void Work::wait() {
  // Taken out first: an operation that throws must not be waited for again.
  if (const std::unique_ptr<Operation> operation = std::exchange(operation_, nullptr)) operation->wait();
}

// Dissemination: after round k a rank knows of 2^k ranks, so ⌈log₂ n⌉ rounds of empty pieces do.
void Communicator::barrier() {
  const int n = size();
  for (int distance = 1; distance < n; distance *= 2) {
    const Segment send{.peer = (rank() + distance) % n};
    const Segment receive{.peer = (rank() - distance + n) % n};
    exchange({&send, 1}, {&receive, 1}, "barrier").wait();
  }
}

void Communicator::all_gather(const void* mine, void* all, size_t bytes, const char* operation) {
  std::vector<Segment> receives;
  for (int peer = 0; peer < size(); ++peer)
    receives.push_back({peer, static_cast<std::byte*>(all) + static_cast<size_t>(peer) * bytes, bytes});
  all_gather_v({rank(), const_cast<void*>(mine), bytes}, receives, operation);
}

void Communicator::all_gather_v(const Segment& mine, std::span<const Segment> receive, const char* operation) {
  check_parts(receive, size(), operation);
  std::vector<Segment> sends(static_cast<size_t>(size()), mine);
  std::vector<Segment> receives(receive.begin(), receive.end());
  for (int peer = 0; peer < size(); ++peer) {
    sends[static_cast<size_t>(peer)].peer = peer;
    receives[static_cast<size_t>(peer)].peer = peer;
  }
  exchange(sends, receives, operation).wait();
}

void Communicator::all_gather_in_place(std::span<const Segment> parts, const char* operation) {
  check_parts(parts, size(), operation);
  const Segment mine = parts[static_cast<size_t>(rank())];
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Segment theirs = parts[static_cast<size_t>(peer)];
    if (mine.bytes > 0) sends.push_back({peer, mine.data, mine.bytes});
    if (theirs.bytes > 0) receives.push_back({peer, theirs.data, theirs.bytes});
  }
  exchange(sends, receives, operation).wait();
}

void Communicator::broadcast(int root, void* data, size_t bytes, const char* operation) {
  std::vector<Segment> sends;
  std::vector<Segment> receives;
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != root) sends.push_back({peer, data, bytes});
  } else {
    receives.push_back({root, data, bytes});
  }
  exchange(sends, receives, operation).wait();
}

double Communicator::all_reduce_max(double value) {
  return std::ranges::max(value_of_each(*this, value, "all_reduce_max"));
}

double Communicator::all_reduce_min(double value) {
  return std::ranges::min(value_of_each(*this, value, "all_reduce_min"));
}

double Communicator::all_reduce_sum(double value) {
  double sum = 0;
  for (const double term : value_of_each(*this, value, "all_reduce_sum")) sum += term;
  return sum;
}

}  // namespace zoetrope::comm
