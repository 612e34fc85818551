// `bench comm`: all-to-all and ring bandwidth against message size, each message verified word by word, compared with
// the memory copies of the same ranks.
#include <algorithm>
#include <cstring>
#include <map>

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "bench/cases.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "bench/words.h"

namespace zoetrope::bench {
namespace {

using comm::Communicator;
using comm::Segment;

constexpr int kMostRanks = 255;  // a byte of a payload word
constexpr double kWindow = 0.02;

enum class Pattern : uint8_t { kAllToAll, kRing };
constexpr Pattern kPatterns[] = {Pattern::kAllToAll, Pattern::kRing};

const char* name_of(Pattern pattern) { return pattern == Pattern::kAllToAll ? "all_to_all" : "ring"; }

// Sender, receiver and position in the message: a wrong word names its origin.
uint64_t word_of(int sender, int receiver, size_t position) {
  return static_cast<uint64_t>(sender + 1) << 56 | static_cast<uint64_t>(receiver + 1) << 48 |
         static_cast<uint64_t>(position);
}

// The messages of one rank: one piece for each peer.
class Messages {
 public:
  Messages(Communicator& world, Pattern pattern, size_t bytes) : world_(world) {
    const int n = world.size(), rank = world.rank();
    std::vector<int> to, from;
    size_t piece = bytes;
    if (pattern == Pattern::kRing) {
      to = {(rank + 1) % n};
      from = {(rank + n - 1) % n};
    } else {
      // A rank does not send its own piece, as in the engine.
      for (int shift = 1; shift < n; ++shift) {
        to.push_back((rank + shift) % n);
        from.push_back((rank + n - shift) % n);
      }
      piece = bytes / static_cast<size_t>(n);
    }
    piece_ = std::max<size_t>(8, piece / 8 * 8);
    send_data_ = Tensor(DType::kI64, {static_cast<int64_t>(to.size() * piece_ / 8)});
    receive_data_ = Tensor(DType::kI64, {static_cast<int64_t>(from.size() * piece_ / 8)});
    add(sends_, send_data_, to);
    add(receives_, receive_data_, from);
    for (const Segment& segment : sends_) {
      auto* words = static_cast<uint64_t*>(segment.data);
      for (size_t i = 0; i < piece_ / 8; ++i) words[i] = word_of(rank, segment.peer, i);
    }
  }

  void exchange() { world_.exchange(sends_, receives_, "bench comm").wait(); }

  void verify() {
    for (const Segment& segment : receives_) {
      const auto* words = static_cast<const uint64_t*>(segment.data);
      for (size_t i = 0; i < piece_ / 8; ++i) {
        if (words[i] == word_of(segment.peer, world_.rank(), i)) continue;
        fail(
            "bench comm: word {} of rank {}'s message to rank {} arrived as {:#x}, the word {} of rank {}'s to rank {}",
            i, segment.peer, world_.rank(), words[i], words[i] & 0xffffffffffff, static_cast<int>(words[i] >> 56) - 1,
            static_cast<int>(words[i] >> 48 & 0xff) - 1);
      }
    }
  }

  void clear() { std::memset(receive_data_.data<char>(), 0, receive_data_.view().bytes()); }
  size_t sent() const { return piece_ * sends_.size(); }

 private:
  void add(std::vector<Segment>& segments, const Tensor& data, const std::vector<int>& peers) {
    for (size_t i = 0; i < peers.size(); ++i) segments.push_back({peers[i], data.data<char>() + i * piece_, piece_});
  }

  Communicator& world_;
  size_t piece_ = 0;
  Tensor send_data_, receive_data_;
  std::vector<Segment> sends_, receives_;
};

struct Figures {
  size_t sent = 0;              // bytes of one rank
  std::vector<double> seconds;  // of the slowest rank
  std::vector<double> copy;     // bytes per second, all ranks copying at once
};

// Every rank copies as many bytes as it sends, in its own memory, all at the same time; by the faster of the two ways.
double copy_of_all(Communicator& world, size_t bytes) {
  double best = 0;
  for (const CopyKind kind : {CopyKind::kMemcpy, CopyKind::kStreaming}) {
    world.barrier();
    best = std::max(best, world.all_reduce_sum(measure_copy_bandwidth(1, bytes, kWindow, kind)));
  }
  return best;
}

Figures measure(Communicator& world, Pattern pattern, size_t bytes, int repeats) {
  Messages messages(world, pattern, bytes);
  Figures figures;
  figures.sent = messages.sent();
  messages.exchange();
  messages.verify();
  const auto timed = [&](int64_t count) {
    world.barrier();
    const double begin = wall_seconds();
    for (int64_t i = 0; i < count; ++i) messages.exchange();
    return world.all_reduce_max(wall_seconds() - begin) / static_cast<double>(count);
  };
  const double once = timed(3);
  const auto count = static_cast<int64_t>(std::clamp(kWindow / once, 1.0, 1e6));
  double before = copy_of_all(world, figures.sent);
  messages.clear();
  for (int i = 0; i < repeats; ++i) {
    figures.seconds.push_back(timed(count));
    const double after = copy_of_all(world, figures.sent);
    figures.copy.push_back((before + after) / 2);
    before = after;
  }
  messages.verify();
  return figures;
}

class CommBench {
 public:
  CommBench(const CommSettings& settings, Communicator* world, const Progress& progress)
      : settings_(settings), world_(world), progress_(progress), sizes_(parse_byte_sizes("sizes", settings.sizes)) {
    ranks_ = parse_counts("ranks", settings.ranks, available_threads(), kMostRanks);
    for (const int ranks : ranks_) {
      if (ranks < 2) fail("ranks: {} rank has no peer to send to; 2 is the least", ranks);
    }
    if (world != nullptr) {
      if (world->size() < 2 || world->size() > kMostRanks) {
        fail("bench comm: needs 2 to {} ranks, but there are {}", kMostRanks, world->size());
      }
      ranks_ = {world->size()};
    }
    table_.columns = {{"pattern", "pattern"},
                      {"transport", "transport"},
                      {"ranks", "ranks"},
                      {"bytes", "bytes per rank", Format::kBytes},
                      {"seconds_min", "least", Format::kSeconds},
                      {"seconds_median", "median", Format::kSeconds},
                      {"algbw", "alg GB/s", Format::kOneDecimal},
                      {"busbw", "bus GB/s", Format::kOneDecimal},
                      {"busbw_all", "all ranks GB/s", Format::kOneDecimal},
                      {"copy", "copy GB/s", Format::kOneDecimal},
                      {"fraction", "of copy", Format::kPercent},
                      {"fraction_max", "most %", Format::kPercent, true}};
  }

  Section run() {
    for (const int ranks : ranks_) {
      for (const Pattern pattern : kPatterns) {
        for (const int64_t bytes : sizes_) run_case(ranks, pattern, static_cast<size_t>(bytes));
        const std::vector<Cell>& last = table_.rows.back();
        highlights_.emplace_back(
            fmt::format("{} GB/s", format_cell(last[8], Format::kOneDecimal)),
            fmt::format("{}, {} ranks, {} each: {} of copy", name_of(pattern), ranks,
                        format_cell(last[3], Format::kBytes), format_cell(last[10], Format::kPercent)));
      }
    }
    Section section;
    section.name = "comm";
    section.title = "Exchange between ranks";
    section.note =
        "'bytes per rank' is the data of one rank. all_to_all: it is split among all ranks, and a rank keeps its own "
        "part; algorithm bandwidth is bytes / time, bus bandwidth is (n − 1) / n of it, the part that is sent. ring: "
        "all of it is sent to the next rank; bus bandwidth is algorithm bandwidth. 'all ranks' is n times the bus "
        "bandwidth, 'copy' the bytes per second when each of these ranks copies as many bytes in its own memory at the "
        "same time (the faster of memcpy and streaming stores), right before and after; 'of copy' is the median of "
        "their ratio. Every message was verified word by word.";
    for (const auto& [title, lines] : lines_) {
      LinePlot plot;
      plot.title = title + ": share of copy bandwidth against message size";
      plot.x_label = "bytes per rank";
      plot.y_label = "of copy bandwidth";
      plot.x_is_bytes = plot.y_is_fraction = true;
      plot.guide = 0.8;
      for (const auto& [name, points] : lines) {
        if (points.size() > 1 && plot.lines.size() < kMostSeries) plot.lines.push_back({name, points});
      }
      if (!plot.lines.empty()) section.line_plots.push_back(std::move(plot));
    }
    section.highlights = std::move(highlights_);
    section.table = std::move(table_);
    return section;
  }

 private:
  void run_case(int ranks, Pattern pattern, size_t bytes) {
    if (progress_ && (world_ == nullptr || world_->rank() == 0)) {
      progress_(fmt::format("{} of {} bytes on {} ranks", name_of(pattern), bytes, ranks));
    }
    Figures figures;
    const auto repeats = static_cast<int>(settings_.repeat);
    if (world_ != nullptr) {
      figures = measure(*world_, pattern, bytes, repeats);
    } else {
      comm::RankOptions options;
      options.timeout_seconds = settings_.comm_timeout;
      comm::run_ranks(
          ranks,
          [&](Communicator& world) {
            Figures mine = measure(world, pattern, bytes, repeats);
            if (world.rank() == 0) figures = std::move(mine);
          },
          options);
    }
    add(ranks, pattern, bytes, figures);
  }

  void add(int ranks, Pattern pattern, size_t bytes, const Figures& figures) {
    const double n = ranks, least = minimum(figures.seconds);
    const double bus = static_cast<double>(figures.sent);  // what a rank sends: bytes·(n − 1)/n, or bytes
    const double algorithm = pattern == Pattern::kAllToAll ? bus * n / (n - 1) : bus;
    std::vector<double> fractions;
    for (size_t i = 0; i < figures.seconds.size(); ++i) {
      fractions.push_back(n * bus / figures.seconds[i] / figures.copy[i]);
    }
    table_.add({name_of(pattern), world_ != nullptr ? "MPI" : "threads", int64_t{ranks}, static_cast<int64_t>(bytes),
                least, median(figures.seconds), algorithm / least * 1e-9, bus / least * 1e-9, n * bus / least * 1e-9,
                median(figures.copy) * 1e-9, median(fractions), maximum(fractions)});
    auto& points = lines_[name_of(pattern)][fmt::format("{} ranks", ranks)];
    if (points.empty() || points.back().x < static_cast<double>(bytes)) {
      points.push_back({static_cast<double>(bytes), median(fractions)});
    }
  }

  const CommSettings& settings_;
  Communicator* world_;
  const Progress& progress_;
  std::vector<int64_t> sizes_;
  std::vector<int> ranks_;
  Table table_;
  std::vector<std::pair<std::string, std::string>> highlights_;
  std::map<std::string, std::map<std::string, std::vector<LinePlot::Point>>> lines_;
};

}  // namespace

OptionSet describe(CommSettings& settings) {
  OptionSet options;
  options.text("ranks", settings.ranks, "numbers of ranks, each a thread; under mpirun always its ranks")
      .text("sizes", settings.sizes, "bytes of each rank (K, M, G: powers of 1024)")
      .integer("repeat", settings.repeat, {1, 10000}, "timed repeats, of at least 20 ms each")
      .number("comm_timeout", settings.comm_timeout, {0.01, 1e7}, "seconds that any wait for another rank may last");
  return options;
}

Section bench_comm(const CommSettings& settings, Communicator* world, const Progress& progress) {
  return CommBench(settings, world, progress).run();
}

}  // namespace zoetrope::bench
