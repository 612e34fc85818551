#include "pipeline/ranks/host_links.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>

namespace zoetrope::pipeline {
namespace {

constexpr size_t kShort = 64;                // a message whose time is only latency
constexpr size_t kLeast = size_t{64} << 10;  // a message that is long, over the slowest of links
constexpr size_t kMost = size_t{16} << 20;   // longer ones have the same bandwidth
constexpr double kLongSeconds = 0.05;        // of a message that fills what lies between
constexpr int kShortRepeats = 50, kTries = 2, kRepeats = 3;

// This rank's neighbours, of the same place on the host after and before its own; none where some host has no such
// place.
struct Ring {
  std::optional<int> to, from;
  int senders = 0;  // of a host
};

Ring ring_of(int rank, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;  // in order of their first ranks
  std::vector<std::vector<int>> ranks;
  for (size_t r = 0; r < hosts.size(); ++r) {
    const auto known = std::find(names.begin(), names.end(), hosts[r]);
    const auto host = static_cast<size_t>(known - names.begin());
    if (known == names.end()) {
      names.push_back(hosts[r]);
      ranks.emplace_back();
    }
    ranks[host].push_back(static_cast<int>(r));
  }
  Ring ring;
  size_t fewest = std::numeric_limits<size_t>::max();
  for (const std::vector<int>& of_host : ranks) fewest = std::min(fewest, of_host.size());
  if (names.size() < 2) return ring;
  ring.senders = static_cast<int>(fewest);
  for (size_t host = 0; host < ranks.size(); ++host) {
    const auto own = std::find(ranks[host].begin(), ranks[host].end(), rank);
    const auto place = static_cast<size_t>(own - ranks[host].begin());
    if (own == ranks[host].end() || place >= fewest) continue;
    ring.to = ranks[(host + 1) % ranks.size()][place];
    ring.from = ranks[(host + ranks.size() - 1) % ranks.size()][place];
  }
  return ring;
}

}  // namespace

std::optional<HostLinks> measure_host_links(comm::Communicator& world, const std::vector<std::string>& hosts,
                                            const std::function<double()>& clock) {
  const Ring ring = ring_of(world.rank(), hosts);
  if (ring.senders == 0) return std::nullopt;
  const auto now = [&] {
    const std::chrono::duration<double> steady = std::chrono::steady_clock::now().time_since_epoch();
    return clock ? clock() : steady.count();
  };
  std::vector<std::byte> sent(ring.to ? kMost : 0), received(sent.size());
  // Of the slowest rank, the fastest of `repeats` times.
  const auto seconds_of = [&](size_t bytes, int repeats) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repeats; ++i) {
      world.barrier();
      const double begin = now();
      if (ring.to) {
        const comm::Segment send{*ring.to, sent.data(), bytes}, receive{*ring.from, received.data(), bytes};
        world.exchange({&send, 1}, {&receive, 1}, kMeasuringLinks).wait();
      }
      least = std::min(least, world.all_reduce_max(now() - begin));
    }
    return least;
  };
  HostLinks links;
  links.latency = seconds_of(kShort, kShortRepeats);
  size_t bytes = kLeast;
  while (bytes < kMost && seconds_of(bytes, kTries) < kLongSeconds) bytes *= 2;
  const double seconds = seconds_of(bytes, kRepeats);
  // Latency is a small part of it, unless something else was measured.
  constexpr double kMostLatency = 0.9;
  const double moving = seconds - std::min(links.latency, kMostLatency * seconds);
  links.bandwidth = static_cast<double>(bytes) * ring.senders / moving;
  return links;
}

}  // namespace zoetrope::pipeline
