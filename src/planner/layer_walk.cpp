#include "planner/layer_walk.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/exchange.h"
#include "parallel/ring.h"
#include "parallel/shards.h"

namespace zoetrope::planner {
namespace {

// Names on the time line: the engine's own where it has one for the same thing.
constexpr const char* kProducts = "products";
constexpr const char* kTokens = "norms, rope, modulation";
constexpr const char* kOverhead = "layer overhead";
constexpr const char* kBlock = "attention block";
constexpr const char* kMerge = "merge of blocks";
constexpr const char* kExchangeName = "ulysses exchange";
constexpr const char* kStatisticsName = "ring statistics";
constexpr const char* kHopName = "ring hop";
constexpr const char* kReturnName = "ulysses return";
constexpr const char* kLayerEnd = "slower ranks";

// q, k and v are three tensors, each of which costs a latency; o is one.
constexpr int kExchangedTensors = 3;

// Adds up what goes from a rank to each of its peers.
void add_flow(std::vector<Flow>& flows, int from, int to, int64_t bytes) {
  if (bytes == 0) return;
  if (!flows.empty() && flows.back().from == from && flows.back().to == to) {
    flows.back().bytes += bytes;
  } else {
    flows.push_back({from, to, bytes});
  }
}

}  // namespace

double padding(int64_t size, int64_t tile) {
  if (tile <= 0 || size <= 0) return 1;
  return static_cast<double>(round_up(size, tile)) / static_cast<double>(size);
}

Prices::Prices(const Work& work, const HardwareProfile& hardware, const Configuration& configuration)
    : work_(work),
      hardware_(hardware),
      compute_(hardware.compute(work.element_bytes)),
      block_q_(configuration.block_q > 0 ? configuration.block_q : hardware.block_q),
      block_kv_(configuration.block_kv > 0 ? configuration.block_kv : hardware.block_kv),
      fixed_max_(configuration.softmax == parallel::Softmax::kFixedMax) {}

double Prices::products(double flop, int64_t tokens, int64_t batch) const {
  if (tokens == 0 || flop == 0) return 0;
  const auto rows = static_cast<double>(tokens);
  const double share = rows * static_cast<double>(batch) / static_cast<double>(work_.tokens);
  return flop * share / (compute_.gemm.at(rows) * compute_.peak);
}

double Prices::tokens(int64_t tokens, int64_t batch) const {
  const double width = static_cast<double>(work_.width) / static_cast<double>(hardware_.token_width);
  return hardware_.token_seconds * width * static_cast<double>(tokens * batch);
}

double Prices::attention_flop(int64_t queries, int64_t keys, int64_t heads, int64_t batch) const {
  return 4.0 * static_cast<double>(queries) * static_cast<double>(keys) *
         static_cast<double>(heads * batch * work_.head_dim);
}

double Prices::attention(int64_t queries, int64_t keys, int64_t heads, int64_t batch) const {
  if (queries == 0 || keys == 0 || heads == 0) return 0;
  // A tile is never larger than what there is; without one the library finds its own.
  const int64_t tile_q = block_q_ > 0 ? std::min(block_q_, queries) : queries;
  const int64_t tile_kv = std::min(block_kv_, keys);
  double share = compute_.attention.at(static_cast<double>(tile_q));
  if (!compute_.attention_keys.points().empty()) share *= compute_.attention_keys.at(static_cast<double>(keys));
  if (fixed_max_) share *= compute_.fixed_max_gain;
  return attention_flop(queries, keys, heads, batch) * padding(queries, tile_q) * padding(keys, tile_kv) /
         (share * compute_.peak);
}

double Prices::merge(int64_t queries, int64_t heads, int64_t batch, int blocks) const {
  if (blocks < 2 || hardware_.merge_passes == 0) return 0;
  const double bytes = static_cast<double>(queries * heads * batch * work_.head_dim) * sizeof(float);
  return hardware_.merge_passes * blocks * bytes / hardware_.memory_bandwidth;
}

LayerWalk::LayerWalk(const Work& work, const HardwareProfile& hardware, const Configuration& configuration,
                     const Routes& routes, Timeline timeline)
    : work_(work),
      hardware_(hardware),
      configuration_(configuration),
      prices_(work, hardware, configuration),
      wires_(routes, static_cast<int>(hardware.links.size()), configuration.layout.ranks()),
      records_(timeline == Timeline::kLayer),
      topology_(configuration.layout.of_sequence()),
      sizes_(work.sizes(work.branches / configuration.layout.data)),
      ranks_(static_cast<size_t>(configuration.layout.ranks())),
      now_(ranks_, 0.0),
      stolen_exchange_(ranks_, 0.0),
      stolen_ring_(ranks_, 0.0),
      parts_(ranks_),
      exposed_exchange_(hardware.links.size(), 0.0),
      exposed_ring_(hardware.links.size(), 0.0) {
  read_ring_tables();
}

// The columns of a ring and the data coordinates have the same tables, so that one reading does for all.
void LayerWalk::read_ring_tables() {
  for (int index = 0; index < topology_.ring; ++index) {
    const auto table = parallel::ring_schedule(sizes_.tokens, topology_, index);
    if (ring_.size() < table.size()) ring_.resize(table.size());
    for (size_t t = 0; t < table.size(); ++t) {
      RingStep& step = ring_[t];
      for (const parallel::Transfer& send : table[t].sends)
        if (!send.tokens.empty()) step.hops.push_back({index, send.peer, send.tokens.size()});
      for (const parallel::Piece& piece : table[t].compute)
        if (!piece.tokens.empty()) step.keys.push_back({index, piece.tokens.size()});
    }
  }
}

int64_t LayerWalk::heads_of(int context_rank, int chunk) const {
  const IndexRange share = parallel::head_share(sizes_.heads, topology_.ulysses, topology_.ulysses_index(context_rank));
  return parallel::head_chunk(share, topology_.head_chunks, chunk).size();
}

std::vector<Flow> LayerWalk::exchange_flows(int chunk, Way way) const {
  std::vector<Flow> flows;
  if (topology_.ulysses == 1) return flows;
  for (int rank = 0; rank < topology_.ranks(); ++rank) {
    const auto exchange = way == Way::kThere ? parallel::exchange_schedule(sizes_, topology_, rank, chunk)
                                             : parallel::return_schedule(sizes_, topology_, rank, chunk);
    const int ring = topology_.ring_index(rank);
    for (const parallel::Segment& send : exchange.sends)
      add_flow(flows, rank, topology_.rank_of(ring, send.peer), parallel::segment_bytes(sizes_, send));
  }
  return on_all_coordinates(std::move(flows));
}

std::vector<Flow> LayerWalk::hop_flows(const RingStep& step, int chunk) const {
  std::vector<Flow> flows;
  flows.reserve(step.hops.size() * static_cast<size_t>(topology_.ulysses));
  for (int column = 0; column < topology_.ulysses; ++column) {
    const int64_t heads = heads_of(column, chunk);
    for (const Hop& hop : step.hops) {
      const int64_t bytes = parallel::kv_bytes(sizes_, {0, hop.tokens}, heads);
      add_flow(flows, topology_.rank_of(hop.from, column), topology_.rank_of(hop.to, column), bytes);
    }
  }
  return on_all_coordinates(std::move(flows));
}

// Every data coordinate does the same at the same time, on devices of its own.
std::vector<Flow> LayerWalk::on_all_coordinates(std::vector<Flow> flows) const {
  const size_t of_one = flows.size();
  const int ranks = topology_.ranks();
  for (int group = 1; group * ranks < static_cast<int>(ranks_); ++group)
    for (size_t f = 0; f < of_one; ++f) {
      const Flow flow = flows[f];
      flows.push_back({flow.from + group * ranks, flow.to + group * ranks, flow.bytes});
    }
  return flows;
}

void LayerWalk::compute(size_t rank, const char* name, double seconds, double Breakdown::*part, double flop) {
  if (seconds <= 0) return;
  const double begin = now_[rank];
  now_[rank] += seconds;
  parts_[rank].*part += seconds;
  if (records_) {
    spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kCompute, name, begin, now_[rank], 0, flop});
  }
}

void LayerWalk::record_transfers(const char* name, const std::vector<Arrival>& arrivals) {
  if (!records_) return;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Arrival& arrival = arrivals[rank];
    if (arrival.level < 0) continue;
    spans_.push_back(
        {static_cast<int>(rank), TimelineSpan::Lane::kTransfer, name, arrival.posted, arrival.end, arrival.bytes, 0});
  }
}

std::vector<Arrival> LayerWalk::post(const char* name, const std::vector<Flow>& flows, int messages) {
  std::vector<Arrival> arrivals = wires_.carry(flows, now_, messages);
  record_transfers(name, arrivals);
  return arrivals;
}

// Every column's ranks that have keys send a record to each other.
std::vector<Arrival> LayerWalk::post_statistics(int chunk) {
  const std::vector<int> holders = parallel::statistics_ranks(sizes_.tokens, topology_.ring);
  std::vector<Routes::Group> groups;
  for (int first = 0; first < static_cast<int>(ranks_); first += topology_.ranks()) {
    for (int column = 0; column < topology_.ulysses; ++column) {
      const int64_t heads = heads_of(column, chunk);
      if (heads == 0) continue;
      Routes::Group& group = groups.emplace_back();
      group.bytes = parallel::statistics_bytes(sizes_, heads);
      for (const int index : holders) group.devices.push_back(first + topology_.rank_of(index, column));
    }
  }
  std::vector<Arrival> arrivals = wires_.gather(groups, now_);
  record_transfers(kStatisticsName, arrivals);
  return arrivals;
}

// Until all that a rank sends and receives has arrived. What it waits before all its peers had posted is theirs (idle),
// the rest the transfer's. Of an exchange that went on beside compute only chunk_overlap counts as hidden; what it took
// of the rank's own time is part of the loss.
void LayerWalk::wait(const char* name, const std::vector<Arrival>& arrivals, Kind kind) {
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Arrival& arrival = arrivals[rank];
    if (arrival.level < 0) continue;
    const double begin = now_[rank];
    const double idle = std::max(0.0, std::min(arrival.met, arrival.end) - begin);
    double exposed = std::max(0.0, arrival.end - begin - idle);
    if (kind == Kind::kExchange) {
      const double hidden = std::max(0.0, std::min(begin, arrival.end) - arrival.begin);
      exposed += std::max(0.0, (1 - hardware_.chunk_overlap) * hidden - arrival.stolen);
    }
    now_[rank] = begin + idle + exposed;
    parts_[rank].idle += idle;
    const auto level = static_cast<size_t>(arrival.level);
    if (kind == Kind::kExchange) {
      parts_[rank].exposed_exchange += exposed;
      exposed_exchange_[level] += exposed;
    } else {
      parts_[rank].exposed_ring += exposed;
      exposed_ring_[level] += exposed;
    }
    if (records_ && now_[rank] > begin)
      spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kWait, name, begin, now_[rank], 0, 0});
  }
}

void LayerWalk::take_time(const std::vector<Arrival>& arrivals, Kind kind) {
  Seconds& stolen = kind == Kind::kExchange ? stolen_exchange_ : stolen_ring_;
  for (size_t rank = 0; rank < ranks_; ++rank) stolen[rank] += arrivals[rank].stolen;
}

void LayerWalk::before_attention() {
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int context = static_cast<int>(rank) % topology_.ranks();
    const int64_t tokens = parallel::token_shard(sizes_.tokens, topology_.ranks(), context).size();
    const double flop = work_.linear_flop + work_.cross_flop;
    const double share = static_cast<double>(tokens * sizes_.batch) / static_cast<double>(sizes_.tokens);
    compute(rank, kProducts, prices_.products(flop, tokens, sizes_.batch), &Breakdown::linear, flop * share);
    compute(rank, kTokens, prices_.tokens(tokens, sizes_.batch), &Breakdown::tokens);
    compute(rank, kOverhead, hardware_.layer_overhead * static_cast<double>(sizes_.batch), &Breakdown::overhead);
  }
}

// One step of the ring: the hop is posted, statistics are waited for (in step 0), what is here is computed, the hop is
// waited for.
void LayerWalk::ring_step(const RingStep& step, int chunk, const std::vector<Arrival>& statistics) {
  std::vector<Arrival> hop;
  if (!step.hops.empty()) {
    hop = post(kHopName, hop_flows(step, chunk), 1);
    take_time(hop, Kind::kRing);
  }
  if (!statistics.empty()) wait(kStatisticsName, statistics, Kind::kRing);
  for (const Keys& keys : step.keys) {
    const int64_t queries = parallel::ring_block(sizes_.tokens, topology_.ring, keys.index).size();
    for (int column = 0; column < topology_.ulysses; ++column) {
      const int64_t heads = heads_of(column, chunk);
      const double seconds = prices_.attention(queries, keys.tokens, heads, sizes_.batch);
      const double flop = prices_.attention_flop(queries, keys.tokens, heads, sizes_.batch);
      for (auto rank = static_cast<size_t>(topology_.rank_of(keys.index, column)); rank < ranks_;
           rank += static_cast<size_t>(topology_.ranks()))
        compute(rank, kBlock, seconds, &Breakdown::attention, flop);
    }
  }
  for (size_t rank = 0; rank < ranks_; ++rank) {
    compute(rank, kExchangeName, stolen_exchange_[rank], &Breakdown::exposed_exchange);
    compute(rank, kHopName, stolen_ring_[rank], &Breakdown::exposed_ring);
    stolen_exchange_[rank] = stolen_ring_[rank] = 0;
  }
  if (!hop.empty()) wait(kHopName, hop, Kind::kRing);
}

void LayerWalk::attend(int chunk, const std::vector<Arrival>& statistics) {
  for (size_t t = 0; t < ring_.size(); ++t) ring_step(ring_[t], chunk, t == 0 ? statistics : std::vector<Arrival>{});
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int context = static_cast<int>(rank) % topology_.ranks();
    const int64_t queries = parallel::ring_block(sizes_.tokens, topology_.ring, topology_.ring_index(context)).size();
    compute(rank, kMerge, prices_.merge(queries, heads_of(context, chunk), sizes_.batch, topology_.ring),
            &Breakdown::merge);
  }
}

// The engine's order (ContextAttention::Impl::execute): the next chunk's exchange is on its way before this one's is
// waited for, and a chunk's way back is waited for after the next has been computed.
void LayerWalk::attention() {
  const int chunks = topology_.head_chunks;
  const bool group = topology_.ulysses > 1,
             gathers = configuration_.softmax == parallel::Softmax::kFixedMax && topology_.ring > 1;
  const auto exchange = [&](int chunk) {
    return post(kExchangeName, exchange_flows(chunk, Way::kThere), kExchangedTensors);
  };
  const auto gather = [&](int chunk) { return gathers ? post_statistics(chunk) : std::vector<Arrival>{}; };
  std::vector<Arrival> arriving, returning, statistics;
  if (group) arriving = exchange(0);
  if (!group) statistics = gather(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool last = chunk + 1 == chunks;
    if (group) {
      const std::vector<Arrival> current = std::move(arriving);
      if (!last) {
        arriving = exchange(chunk + 1);
        take_time(arriving, Kind::kExchange);
      }
      wait(kExchangeName, current, Kind::kExchange);
      statistics = gather(chunk);
    }
    const std::vector<Arrival> ready = std::move(statistics);
    statistics.clear();
    if (!group && !last) statistics = gather(chunk + 1);
    attend(chunk, ready);
    if (!group) continue;
    std::vector<Arrival> leaving = post(kReturnName, exchange_flows(chunk, Way::kBack), 1);
    if (!last) take_time(leaving, Kind::kExchange);
    if (chunk > 0) wait(kReturnName, returning, Kind::kExchange);
    returning = std::move(leaving);
  }
  if (group) wait(kReturnName, returning, Kind::kExchange);
}

void LayerWalk::run() {
  before_attention();
  attention();
  seconds_ = *std::max_element(now_.begin(), now_.end());
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const double idle = seconds_ - now_[rank];
    parts_[rank].idle += idle;
    if (records_ && idle > 0)
      spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kWait, kLayerEnd, now_[rank], seconds_, 0, 0});
    now_[rank] = seconds_;
  }
}

}  // namespace zoetrope::planner
