#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "bench/calibrate_measure.h"
#include "pipeline/ranks/hosts.h"

namespace zoetrope::bench {
namespace {

constexpr int kNobody = -1;
constexpr size_t kSmall = 64;                    // a message whose time is only latency
constexpr size_t kLeast = size_t{1} << 20;       // a typical size in runs
constexpr size_t kMostBytes = size_t{64} << 20;  // longer messages have the same bandwidth
constexpr size_t kWithinHost = size_t{8} << 20;
constexpr double kHalfDuplex = 0.65;  // of the one-way rate, in each direction: between one half and all of it
constexpr int kOverlapRepeats = 7;

// The ranks that a rank sends to and receives from, or kNobody.
struct Peers {
  int to = kNobody, from = kNobody;
};

// Identifies a message, at its start, middle and end.
struct Stamp {
  int32_t rank = kNobody, index = 0;
  bool operator==(const Stamp&) const = default;
};

// All ranks count all exchanges, also those in which they have no peer: so a receiver knows the index of a message.
class Messages {
 public:
  Messages(CalibrationRank& rank, size_t most)
      : rank_(rank),
        sent_(Tensor(DType::kU8, {static_cast<int64_t>(most)})),
        received_(Tensor(DType::kU8, {static_cast<int64_t>(most)})) {
    std::memset(sent_.data<char>(), 0x5a, most);
  }

  comm::Work post(const Peers& peers, size_t bytes) {
    ++index_;
    for (const size_t at : stamped(bytes)) {
      const Stamp mine{rank_.world().rank(), index_}, nothing;
      std::memcpy(sent_.data<char>() + at, &mine, sizeof mine);
      std::memcpy(received_.data<char>() + at, &nothing, sizeof nothing);
    }
    const comm::Segment send{peers.to, sent_.data<char>(), bytes}, receive{peers.from, received_.data<char>(), bytes};
    return rank_.world().exchange({&send, peers.to == kNobody ? 0U : 1U}, {&receive, peers.from == kNobody ? 0U : 1U},
                                  "calibrate");
  }
  void exchange(const Peers& peers, size_t bytes) {
    post(peers, bytes).wait();
    check(peers, bytes);
  }

  // The last message, after it was waited for.
  void check(const Peers& peers, size_t bytes) const {
    if (peers.from == kNobody) return;
    for (const size_t at : stamped(bytes)) {
      Stamp found;
      std::memcpy(&found, received_.data<char>() + at, sizeof found);
      if (found == Stamp{peers.from, index_}) continue;
      fail("calibrate: rank {} waited for message {} of rank {}, and at byte {} of {} found message {} of rank {}",
           rank_.world().rank(), index_, peers.from, at, bytes, found.index, found.rank);
    }
  }

 private:
  static std::array<size_t, 3> stamped(size_t bytes) { return {0, bytes / 2, bytes - sizeof(Stamp)}; }

  CalibrationRank& rank_;
  Tensor sent_, received_;
  int32_t index_ = 0;
};

// The length of a message that fills a window: shorter ones would measure buffers.
size_t long_message(CalibrationRank& rank, Messages& messages, const Peers& peers) {
  size_t bytes = kLeast;
  while (bytes < kMostBytes && rank.slowest(1, [&] { messages.exchange(peers, bytes); }) < rank.seconds()) bytes *= 2;
  return bytes;
}

// Bytes per second of `senders` ranks that each send `bytes`, without latency.
Measured bandwidth(const Measured& time, double latency, size_t bytes, int senders) {
  const double seconds = std::max(time.value - latency, time.value * 0.1);
  return {static_cast<double>(bytes) * senders / seconds, time.spread};
}

// (1 − overlap) of a transfer is how much it slows down longer concurrent compute.
Measured overlap_of(CalibrationRank& rank, Messages& messages, const Peers& peers, size_t bytes, AttentionWork& work) {
  const double transfer = rank.slowest(rank.count_for(rank.slowest(1, [&] { messages.exchange(peers, bytes); })),
                                       [&] { messages.exchange(peers, bytes); });
  const auto tile = [&] { work.attend(); };
  tile();
  const double one = rank.slowest(rank.count_for(rank.slowest(1, tile)), tile);
  constexpr double kLonger = 1.5;
  const auto tiles = static_cast<int64_t>(std::ceil(kLonger * transfer / one));
  const auto compute = [&] {
    for (int64_t i = 0; i < tiles; ++i) tile();
  };
  const int64_t count = rank.count_for(kLonger * transfer);
  std::vector<double> shares;
  for (int i = 0; i < kOverlapRepeats; ++i) {
    const double before = rank.slowest(count, compute);
    const double both = rank.slowest(count, [&] {
      comm::Work moving = messages.post(peers, bytes);
      compute();
      moving.wait();
      messages.check(peers, bytes);
    });
    const double after = rank.slowest(count, compute);
    shares.push_back(std::clamp(1 - (both - (before + after) / 2) / transfer, 0.0, 1.0));
  }
  return {median(shares), (maximum(shares) - minimum(shares)) / 2};
}

Measured within(CalibrationRank& rank, Messages& messages, const Peers& peers, size_t bytes) {
  return rank.times([&] { messages.exchange(peers, bytes); });
}

}  // namespace

HostLayout find_hosts(comm::Communicator& world) {
  const std::vector<std::string> names = pipeline::hosts_of_ranks(world);
  std::vector<int> first;  // rank of each host
  for (int r = 0; r < world.size(); ++r)
    if (r == 0 || names[static_cast<size_t>(r)] != names[static_cast<size_t>(r) - 1]) first.push_back(r);
  const auto name = [&](int r) { return names[static_cast<size_t>(r)]; };
  for (size_t a = 0; a < first.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (name(first[a]) == name(first[b])) {
        fail(
            "calibrate: ranks {} and {} are on host {}, but the ranks between them are not; ranks of a host must be "
            "consecutive (mpirun --map-by slot)",
            first[b], first[a], name(first[a]));
      }
  HostLayout layout;
  layout.hosts = static_cast<int>(first.size());
  layout.ranks_per_host = layout.hosts > 1 ? first[1] : world.size();
  for (size_t h = 0; h < first.size(); ++h) {
    const int end = h + 1 < first.size() ? first[h + 1] : world.size();
    if (end - first[h] != layout.ranks_per_host) {
      fail(
          "calibrate: host {} has {} ranks and host {} has {}; a profile describes equal hosts, so start the same "
          "number on each",
          name(0), layout.ranks_per_host, name(first[h]), end - first[h]);
    }
  }
  layout.host = world.rank() / layout.ranks_per_host;
  layout.local = world.rank() % layout.ranks_per_host;
  return layout;
}

LinkFigures measure_within_host(CalibrationRank& rank, const HostLayout& layout, AttentionWork* work) {
  const int n = layout.ranks_per_host, first = layout.host * n;
  const Peers ring{first + (layout.local + 1) % n, first + (layout.local + n - 1) % n};
  // The first of a host to the second.
  const Peers pair{layout.local == 0 ? ring.to : kNobody, layout.local == 1 ? ring.from : kNobody};
  Messages messages(rank, kWithinHost);
  LinkFigures link;
  link.bytes = kWithinHost;
  link.latency = within(rank, messages, ring, kSmall);
  const double latency = link.latency.value;
  link.bandwidth = bandwidth(within(rank, messages, ring, kWithinHost), latency, kWithinHost, n);
  link.one_way = bandwidth(within(rank, messages, pair, kWithinHost), latency, kWithinHost, 1);
  if (work != nullptr) link.overlap = overlap_of(rank, messages, ring, kWithinHost, *work);
  return link;
}

LinkFigures measure_between_hosts(CalibrationRank& rank, const HostLayout& layout, AttentionWork& work) {
  const int n = layout.ranks_per_host, hosts = layout.hosts;
  const auto peer = [&](int host) { return (host + hosts) % hosts * n + layout.local; };
  const Peers ring{peer(layout.host + 1), peer(layout.host - 1)};
  // Hosts in pairs, the even one sends.
  const bool even = layout.host % 2 == 0, paired = even ? layout.host + 1 < hosts : true;
  Peers one_way;
  if (paired && even) one_way.to = peer(layout.host + 1);
  if (paired && !even) one_way.from = peer(layout.host - 1);
  const Peers one_rank = layout.local == 0 ? ring : Peers{};
  Messages messages(rank, kMostBytes);
  LinkFigures link;
  link.latency = within(rank, messages, ring, kSmall);
  const double latency = link.latency.value;
  const size_t bytes = long_message(rank, messages, ring);
  link.bytes = static_cast<int64_t>(bytes);
  const Measured both = bandwidth(within(rank, messages, ring, bytes), latency, bytes, n);
  link.one_way = bandwidth(within(rank, messages, one_way, bytes), latency, bytes, n);
  link.one_rank = n > 1 ? bandwidth(within(rank, messages, one_rank, bytes), latency, bytes, 1) : both;
  link.full_duplex = both.value > kHalfDuplex * link.one_way.value;
  link.bandwidth = link.full_duplex ? both : Measured{2 * both.value, both.spread};
  link.overlap = overlap_of(rank, messages, ring, bytes, work);
  return link;
}

}  // namespace zoetrope::bench
