#include "planner/layer_walk.h"

#include <algorithm>

#include "base/error.h"
#include "parallel/program.h"
#include "parallel/shards.h"

namespace zoetrope::planner {
namespace {

// Names on the time line; the engine's own where it has one.
constexpr const char* kGemm = "matrix multiplications";
constexpr const char* kTokens = "norms, rope, modulation";
constexpr const char* kOverhead = "layer overhead";
constexpr const char* kBlock = "attention block";
constexpr const char* kMerge = "merge of blocks";
constexpr const char* kNarrow = "narrow keys and values";
constexpr const char* kWiden = "widen keys and values";
constexpr const char* kTensorSums = "sums over tensor ranks";
constexpr const char* kLayerEnd = "slower ranks";

// q, k and v are three tensors, each of which costs a latency; o is one.
constexpr int kExchangedTensors = 3;

// Adds up the bytes from a rank to each of its peers.
void add_flow(std::vector<Flow>& flows, int from, int to, int64_t bytes) {
  if (bytes == 0) return;
  if (!flows.empty() && flows.back().from == from && flows.back().to == to) {
    flows.back().bytes += bytes;
  } else {
    flows.push_back({from, to, bytes});
  }
}

// With the heads of one tensor coordinate.
parallel::Sizes sizes_of(const Work& work, const parallel::ParallelLayout& layout) {
  parallel::Sizes sizes = work.sizes(work.batch(layout.data));
  sizes.heads /= layout.tensor;
  return sizes;
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

double Prices::gemm(double flop, int64_t tokens, int64_t batch) const {
  if (tokens == 0 || flop == 0) return 0;
  const auto rows = static_cast<double>(tokens);
  const double share = rows * static_cast<double>(batch) / static_cast<double>(work_.tokens);
  return flop * share / (compute_.gemm.at(rows) * compute_.peak);
}

double Prices::layer_gemms(int tensor, int64_t tokens, int64_t batch) const {
  const double flop = work_.layer_flop(tensor), linear = flop - work_.cross_flop / tensor;
  const double saved = linear * work_.int8_share * (1 - 1 / compute_.int8_gain);
  return gemm(flop - saved, tokens, batch);
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
  // A tile is never larger than the problem; without one the library chooses.
  const int64_t tile_q = block_q_ > 0 ? std::min(block_q_, queries) : queries;
  const int64_t tile_kv = std::min(block_kv_, keys);
  double share = compute_.attention.at(static_cast<double>(tile_q));
  if (!compute_.attention_keys.points().empty()) share *= compute_.attention_keys.at(static_cast<double>(keys));
  if (fixed_max_) share *= compute_.fixed_max_gain;
  if (work_.int8_attention) share *= compute_.int8_attention_gain;
  return attention_flop(queries, keys, heads, batch) * padding(queries, tile_q) * padding(keys, tile_kv) /
         (share * compute_.peak);
}

double Prices::merge(int64_t queries, int64_t heads, int64_t batch, int blocks) const {
  if (blocks < 2 || hardware_.merge_passes == 0) return 0;
  const double bytes = static_cast<double>(queries * heads * batch * work_.head_dim) * sizeof(float);
  return hardware_.merge_passes * blocks * bytes / hardware_.memory_bandwidth;
}

double Prices::convert_keys(int64_t tokens, int64_t heads, int64_t batch) const {
  if (work_.kv_vector_bytes == 0) return 0;
  const parallel::Sizes sizes = work_.sizes(batch);
  return static_cast<double>(2 * batch * tokens * heads * (sizes.vector_bytes() + sizes.kv_vector_bytes)) /
         hardware_.memory_bandwidth;
}

// Three partial results are added up, float32, and their sums sent in the model's dtype; and two sums of squares, of q
// and k, and of q of cross-attention, for the norms over all heads. Chunk by chunk, and one sample after the other.
TensorSums tensor_sums(const Work& work, int tensor, int64_t tokens, int64_t batch) {
  constexpr int64_t kFloat = 4, kProducts = 3, kSquares = 3, kSums = 5, kExchanges = 2;
  if (tensor == 1 || tokens == 0) return {};
  const int64_t of_row = kProducts * work.width * (kFloat + work.element_bytes) + kSquares * kExchanges * kFloat;
  const int64_t chunks = work.sum_rows > 0 ? ceil_div(tokens, work.sum_rows) : 1;
  return {batch * ceil_div(tokens, int64_t{tensor}) * of_row, batch * chunks * kSums * kExchanges};
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
      tensor_(configuration.layout.tensor),
      sizes_(sizes_of(work, configuration.layout)),
      ranks_(static_cast<size_t>(configuration.layout.ranks())),
      queries_(ranks_, 0),
      now_(ranks_, 0.0),
      exchange_slowdown_(ranks_, 0.0),
      ring_slowdown_(ranks_, 0.0),
      parts_(ranks_),
      exposed_exchange_(hardware.links.size(), 0.0),
      exposed_ring_(hardware.links.size(), 0.0),
      exposed_tensor_(hardware.links.size(), 0.0),
      link_seconds_(hardware.links.size() * ranks_, 0.0),
      exposed_transfers_(hardware.links.size() * ranks_, 0) {
  read_programs();
}

// Only what is priced is kept of each program: the programs of a thousand ranks take hundreds of megabytes. All data
// and tensor coordinates run the same programs on different devices.
void LayerWalk::read_programs() {
  for (int rank = 0; rank < topology_.ranks(); ++rank) {
    parallel::AttentionProgram program = attention_program(sizes_, topology_, configuration_.softmax, rank);
    transfers_.resize(program.transfers.size());
    folds_.resize(program.folds.size());
    for (int group = 0; group < configuration_.layout.ranks(); group += topology_.ranks() * tensor_)
      for (int index = 0; index < tensor_; ++index) read(program, rank, group + index);
    narrows_ = program.wide.bytes > 0;
    if (rank == 0) ops_ = std::move(program.ops);
  }
}

void LayerWalk::read(const parallel::AttentionProgram& program, int rank, int first) {
  const int own_device = first + rank * tensor_;
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const parallel::Transfer& own = program.transfers[i];
    Transfer& all = transfers_[i];
    all.kind = own.kind;
    all.on_ring = own.on_ring();
    all.to_all = own.to_all();
    if (all.to_all) all.received.resize(ranks_);
    const std::span<const parallel::Message> sends = program.sends(own);
    const auto device = [&](const parallel::Message& message) {
      return first + rank_of_peer(topology_, own, rank, message.peer) * tensor_;
    };
    const auto is_lower = [&](const parallel::Message& message) { return device(message) < own_device; };
    if (!all.to_all) {
      for (const parallel::Message& send : sends) add_flow(all.flows, own_device, device(send), send.at.bytes);
      continue;
    }
    int64_t largest = 0;
    for (const parallel::Message& receive : program.receives(own)) {
      all.received[static_cast<size_t>(own_device)] += receive.at.bytes;
      largest = std::max(largest, receive.at.bytes);
    }
    // The rank with the lowest number adds the group of those that send to each other; all count as the largest.
    if (sends.empty() || std::any_of(sends.begin(), sends.end(), is_lower)) continue;
    Routes::Group& group = all.groups.emplace_back();
    group.bytes = std::max(largest, sends.front().at.bytes);
    group.devices.push_back(own_device);
    for (const parallel::Message& send : sends) group.devices.push_back(device(send));
  }
  queries_[static_cast<size_t>(own_device)] = program.block.size();
  for (size_t i = 0; i < folds_.size(); ++i)
    for (const parallel::KeyBlock& block : program.blocks_of(program.folds[i]))
      folds_[i].push_back({own_device, block.keys.size()});
}

int64_t LayerWalk::tokens_of(size_t device) const {
  return parallel::token_shard(sizes_.tokens, topology_, context_rank(device)).size();
}

int64_t LayerWalk::heads_of(size_t device, int chunk) const {
  const int index = topology_.ulysses_index(context_rank(device));
  return parallel::head_chunk(sizes_.heads, topology_, index, chunk).size();
}

void LayerWalk::compute(size_t rank, const char* name, double seconds, double Breakdown::*part, double flop) {
  if (seconds <= 0) return;
  const bool communicates = part == &Breakdown::exposed_exchange || part == &Breakdown::exposed_ring;
  if (!communicates) seconds /= hardware_.speed(static_cast<int>(rank));
  const double begin = now_[rank];
  now_[rank] += seconds;
  parts_[rank].*part += seconds;
  if (records_) {
    spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kCompute, name, part, begin, now_[rank], 0, flop});
  }
}

// A transfer during compute slows the compute down, which is added to the next fold. Records of statistics are too
// small for that.
void LayerWalk::post(Transfer& transfer, bool during_compute) {
  using Kind = parallel::Transfer::Kind;
  if (transfer.to_all) {
    transfer.arrivals = wires_.gather(transfer.groups, now_);
    for (size_t rank = 0; rank < ranks_; ++rank) transfer.arrivals[rank].bytes = transfer.received[rank];
  } else {
    const int messages = transfer.kind == Kind::kExchange ? kExchangedTensors : 1;
    transfer.arrivals = wires_.carry(transfer.flows, now_, messages);
  }
  const bool takes_time = during_compute && transfer.kind != Kind::kStatistics;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Arrival& arrival = transfer.arrivals[rank];
    if (arrival.level >= 0)
      link_seconds_[static_cast<size_t>(arrival.level) * ranks_ + rank] += arrival.end - arrival.begin;
    if (takes_time) (transfer.on_ring ? ring_slowdown_ : exchange_slowdown_)[rank] += arrival.slowdown;
    if (records_ && arrival.level >= 0)
      spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kTransfer, transfer_name(transfer.kind),
                        transfer.part(), arrival.posted, arrival.end, arrival.bytes, 0});
  }
}

// Waits until everything that a rank sends and receives has arrived. Waiting before all its peers had posted counts as
// idle, the rest as exposed transfer. Of an exchange during compute only the share chunk_overlap counts as hidden; the
// slowdown that was already added is part of the rest.
void LayerWalk::wait(Transfer& transfer) {
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Arrival& arrival = transfer.arrivals[rank];
    if (arrival.level < 0) continue;
    const double begin = now_[rank];
    const double idle = std::max(0.0, std::min(arrival.met, arrival.end) - begin);
    double exposed = std::max(0.0, arrival.end - begin - idle);
    const bool late = exposed > 0;  // and not only slowed by what was hidden
    if (!transfer.on_ring) {
      const double hidden = std::max(0.0, std::min(begin, arrival.end) - arrival.begin);
      exposed += std::max(0.0, (1 - hardware_.chunk_overlap) * hidden - arrival.slowdown);
    }
    now_[rank] = begin + idle + exposed;
    parts_[rank].idle += idle;
    const auto level = static_cast<size_t>(arrival.level);
    if (late) ++exposed_transfers_[level * ranks_ + rank];
    parts_[rank].*transfer.part() += exposed;
    (transfer.on_ring ? exposed_ring_ : exposed_exchange_)[level] += exposed;
    if (records_ && now_[rank] > begin)
      spans_.push_back({static_cast<int>(rank), TimelineSpan::Lane::kWait, transfer_name(transfer.kind),
                        transfer.part(), begin, now_[rank], 0, 0});
  }
  transfer.arrivals.clear();
}

void LayerWalk::before_attention() {
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int64_t tokens = tokens_of(rank);
    const double flop = work_.layer_flop(tensor_);
    const double share = static_cast<double>(tokens * sizes_.batch) / static_cast<double>(sizes_.tokens);
    compute(rank, kGemm, prices_.layer_gemms(tensor_, tokens, sizes_.batch), &Breakdown::linear, flop * share);
    compute(rank, kTokens, prices_.tokens(tokens, sizes_.batch), &Breakdown::tokens);
    compute(rank, kOverhead, hardware_.layer_overhead * static_cast<double>(sizes_.batch), &Breakdown::overhead);
  }
}

// All sums of the layer at once, between neighbours. They have the same to do, so that none waits for another.
void LayerWalk::sum_over_tensor_ranks() {
  if (tensor_ == 1) return;
  std::vector<Routes::Group> groups;
  int64_t exchanges = 0;
  for (size_t first = 0; first < ranks_; first += static_cast<size_t>(tensor_)) {
    const TensorSums sums = tensor_sums(work_, tensor_, tokens_of(first), sizes_.batch);
    exchanges = std::max(exchanges, sums.exchanges);
    Routes::Group& group = groups.emplace_back();
    group.bytes = sums.bytes;
    for (int index = 0; index < tensor_; ++index) group.devices.push_back(static_cast<int>(first) + index);
  }
  const std::vector<Arrival> arrivals = wires_.gather(groups, now_, exchanges);
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Arrival& arrival = arrivals[rank];
    if (arrival.level < 0) continue;
    const auto level = static_cast<size_t>(arrival.level);
    const double begin = now_[rank], seconds = arrival.end - begin;
    now_[rank] = arrival.end;
    parts_[rank].tensor += seconds;
    exposed_tensor_[level] += seconds;
    link_seconds_[level * ranks_ + rank] += seconds;
    if (!records_) continue;
    using Lane = TimelineSpan::Lane;
    for (const auto& [lane, bytes] : {std::pair(Lane::kTransfer, arrival.bytes), std::pair(Lane::kWait, int64_t{0})})
      spans_.push_back({static_cast<int>(rank), lane, kTensorSums, &Breakdown::tensor, begin, arrival.end, bytes, 0});
  }
}

void LayerWalk::narrow() {
  for (size_t rank = 0; rank < ranks_; ++rank)
    compute(rank, kNarrow, prices_.convert_keys(tokens_of(rank), sizes_.heads, sizes_.batch), &Breakdown::tokens);
}

void LayerWalk::fold(int chunk, const std::vector<Keys>& keys) {
  for (const Keys& block : keys) {
    const auto device = static_cast<size_t>(block.rank);
    const int64_t queries = queries_[device], heads = heads_of(device, chunk);
    if (narrows_) compute(device, kWiden, prices_.convert_keys(block.tokens, heads, sizes_.batch), &Breakdown::tokens);
    compute(device, kBlock, prices_.attention(queries, block.tokens, heads, sizes_.batch), &Breakdown::attention,
            prices_.attention_flop(queries, block.tokens, heads, sizes_.batch));
  }
  for (size_t rank = 0; rank < ranks_; ++rank) {
    compute(rank, transfer_name(parallel::Transfer::Kind::kExchange), exchange_slowdown_[rank],
            &Breakdown::exposed_exchange);
    compute(rank, transfer_name(parallel::Transfer::Kind::kHop), ring_slowdown_[rank], &Breakdown::exposed_ring);
    exchange_slowdown_[rank] = ring_slowdown_[rank] = 0;
  }
}

void LayerWalk::finish(int chunk) {
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const int64_t heads = heads_of(rank, chunk);
    compute(rank, kMerge, prices_.merge(queries_[rank], heads, sizes_.batch, topology_.ring), &Breakdown::merge);
  }
}

// Whether the ranks compute between a Post and its Wait.
bool LayerWalk::computes_before_wait(size_t post) const {
  using Kind = parallel::Op::Kind;
  for (size_t i = post + 1; i < ops_.size(); ++i) {
    if (ops_[i].kind == Kind::kFold || ops_[i].kind == Kind::kAttend) return true;
    if (ops_[i].kind == Kind::kWait && ops_[i].index == ops_[post].index) return false;
  }
  return false;
}

// Op by op on all ranks, as the engine executes them. Packing, statistics and unpacking take almost no time in
// comparison and are not priced.
void LayerWalk::attention() {
  using Kind = parallel::Op::Kind;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const parallel::Op& op = ops_[i];
    const auto index = static_cast<size_t>(op.index);
    if (op.kind == Kind::kNarrow) narrow();
    if (op.kind == Kind::kPost) post(transfers_[index], computes_before_wait(i));
    if (op.kind == Kind::kWait) wait(transfers_[index]);
    if (op.kind == Kind::kFold || op.kind == Kind::kAttend) fold(op.chunk, folds_[index]);
    if (op.kind == Kind::kFinish) finish(op.chunk);
  }
}

void LayerWalk::run() {
  before_attention();
  sum_over_tensor_ranks();
  attention();
  seconds_ = *std::max_element(now_.begin(), now_.end());
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const double idle = seconds_ - now_[rank];
    parts_[rank].idle += idle;
    if (records_ && idle > 0)
      spans_.push_back(
          {static_cast<int>(rank), TimelineSpan::Lane::kWait, kLayerEnd, &Breakdown::idle, now_[rank], seconds_, 0, 0});
    now_[rank] = seconds_;
  }
}

}  // namespace zoetrope::planner
