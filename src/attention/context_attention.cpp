// The engine: plan() and run(). One run on one rank, for every head chunk (one unless asked for more):
//
//   pack*        q, k, v of the own tokens into the places of the exchange          (* unless a model wrote there)
//   exchange     tokens for heads inside the Ulysses group; lands in place
//   statistics   of the own keys, gathered over the ring (fixed-max on a ring)
//   ring         post the next K/V blocks, fold the current ones, wait, until all blocks are folded; finish
//   way back     heads for tokens; the own share is unpacked while the others travel, then the others
//
// No copy and no message beyond these; schedule/ lists both and their sums.
#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "zoetrope/attention.h"

#include "attention/chunk.h"
#include "attention/context_axis.h"
#include "attention/strategy.h"
#include "base/error.h"
#include "device/stream.h"
#include "trace/trace.h"

namespace zoetrope::attention {
namespace {

// Names of the operations, as time-out messages and traces show them.
constexpr const char* kExchange = "ulysses exchange";
constexpr const char* kStatistics = "ring statistics";
constexpr const char* kHop = "ring hop";
constexpr const char* kReturn = "ulysses return";

// Everything that all ranks must agree on, by name.
struct Agreement {
  std::vector<const char*> names;
  std::vector<int64_t> values;
  // Its name: no implementation has a longer one, and those that do not exist are refused.
  using Kernel = std::array<char, 64>;
  Kernel kernel{};

  void add(const char* name, int64_t value) {
    names.push_back(name);
    values.push_back(value);
  }
};

Agreement agreement(const Problem& p, const Strategy& s, const parallel::ContextLayout& layout) {
  Agreement mine;
  mine.add("batch", p.batch);
  mine.add("tokens", p.tokens);
  mine.add("key_tokens", p.key_tokens);
  mine.add("heads", p.heads);
  mine.add("head_dim", p.head_dim);
  mine.add("dtype", static_cast<int64_t>(p.dtype));
  mine.add("scale (float bits)", std::bit_cast<int32_t>(p.scale));
  mine.add("mask", static_cast<int64_t>(p.mask));
  layout.for_each([&](const char* name, auto value) { mine.add(name, static_cast<int64_t>(value)); });
  mine.add("softmax", static_cast<int64_t>(*s.softmax));
  mine.add("block_q", s.block_q);
  mine.add("block_kv", s.block_kv);
  mine.add("k_smoothing", s.k_smoothing);
  mine.add("deterministic", s.deterministic);
  mine.add("tile_search", s.tile_search);
  s.kernel.copy(mine.kernel.data(), mine.kernel.size() - 1);
  return mine;
}

// Ranks that disagree would wait for messages that never come, or fold rows that are not theirs.
void check_agreement(comm::Communicator& context, const Agreement& mine) {
  if (context.size() == 1) return;
  const auto ranks = static_cast<size_t>(context.size());
  const size_t count = mine.values.size();
  std::vector<int64_t> values(ranks * count);
  std::vector<Agreement::Kernel> kernels(ranks);
  context.all_gather(mine.values.data(), values.data(), count * sizeof(int64_t), "attention plan");
  context.all_gather(&mine.kernel, kernels.data(), sizeof mine.kernel, "attention plan");
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto refuse = [&](const char* name, const auto& here, const auto& there) {
      fail("attention: rank {} planned {} {}, but rank {} {}; all ranks must bring the same problem and strategy",
           context.world_rank(0), name, here, context.world_rank(static_cast<int>(rank)), there);
    };
    for (size_t i = 0; i < count; ++i)
      if (values[rank * count + i] != values[i]) refuse(mine.names[i], values[i], values[rank * count + i]);
    const auto name_of = [](const Agreement::Kernel& kernel) { return kernel[0] == 0 ? "auto" : kernel.data(); };
    if (kernels[rank] != kernels[0]) refuse("kernel", name_of(kernels[0]), name_of(kernels[rank]));
  }
}

// Copies a place's heads from or to the caller's tensor [B, S_l, H, D].
void copy_heads(Stream& stream, const TensorView& all, IndexRange heads, const TensorView& place, bool into_place) {
  if (place.size() == 0) return;
  const TensorView part = all.slice(2, heads.begin, heads.end);
  copy(stream, into_place ? place : part, into_place ? part : place);
}

}  // namespace

struct ContextAttention::Impl {
  Problem problem;
  Strategy strategy;
  std::unique_ptr<Stream> own_stream;
  Stream* stream = nullptr;
  std::unique_ptr<ContextAxis> axis;

  IndexRange tokens;
  parallel::ContextLayout layout;  // as planned
  parallel::ContextLayout spread;  // that work follows: of one rank where every rank has all keys
  Workspace workspace;
  size_t state_bytes = 0;
  std::optional<RingSlots> slots;
  std::vector<Chunk> chunks;
  InputSlots inputs;
  Counters counters;

  // Tensors of a caller with buffers of its own, where they are read in place.
  struct Direct {
    TensorView q;     // [B, S_l, H, D], U = 1
    TensorView k, v;  // the same, P = 1
  };

  void build();
  void collect_slots();

  int64_t all_keys() const { return problem.key_tokens > 0 ? problem.key_tokens : problem.tokens; }
  enum class Rows : uint8_t { kTokens, kKeys };
  void check_tensor(const char* name, const TensorView& x, Rows rows) const;
  void check_tensors(const TensorView& q, const TensorView& k, const TensorView& v) const;
  void check_mask(const Mask& mask) const;
  void pack(const TensorView& q, const TensorView& k, const TensorView& v);

  void execute(const Mask& mask, const TensorView& o, const Direct& direct);
  comm::Work post_exchange(const Chunk& chunk);
  comm::Work post_return(const Chunk& chunk);
  void wait(comm::Work& work, const char* what);
  void compute(const Chunk& chunk, const Mask& mask, const TensorView& o, const Direct& direct, comm::Work statistics);
  comm::Work post_statistics(const Chunk& chunk, const Mask& mask);
  void finish_statistics(const Chunk& chunk, comm::Work& gather);
  void fold_ring(const Chunk& chunk, const TensorView& q, const Mask& mask, comm::Work statistics);
  void add(const kernels::TileCounts& counts);
  void unpack(const Chunk& chunk, const TensorView& o);
};

void ContextAttention::Impl::build() {
  tokens = parallel::token_shard(problem.tokens, axis->degree(), axis->rank());
  spread = layout;
  Problem part = problem;
  if (problem.key_tokens > 0) {
    part.tokens = tokens.size();
    spread = layout.alone();
  }
  const int rank = spread.ranks() == 1 ? 0 : axis->rank();
  ChunkContext context{part, strategy, spread, rank, *stream};
  context.tiles = plan_tiles(context);
  const IndexRange share = parallel::head_share(problem.heads, spread.ulysses, spread.ulysses_index(rank));
  slots.emplace(context, parallel::head_chunk(share, spread.head_chunks, 0).size(), workspace);
  chunks.reserve(static_cast<size_t>(spread.head_chunks));
  for (int i = 0; i < spread.head_chunks; ++i) {
    const Chunk& chunk = chunks.emplace_back(context, i, *slots, workspace);
    if (chunk.state) state_bytes += chunk.kernel->state_bytes();
  }
  collect_slots();
}

void ContextAttention::Impl::collect_slots() {
  if (tokens.empty()) {
    const IndexRange all{0, problem.heads};
    const TensorView nothing(workspace.book(0), problem.dtype, {problem.batch, 0, problem.heads, problem.head_dim});
    inputs.q = inputs.k = inputs.v = {{all, nothing}};
    if (problem.key_tokens == 0) return;
    // Callers write the keys of cross-attention on every rank; here nobody reads them.
    const Folded folded{problem.dtype, problem.batch, problem.heads, problem.head_dim};
    char* rows = workspace.book(folded.row_bytes(2) * problem.key_tokens);
    inputs.k[0].out = folded.view(rows, problem.key_tokens, 2, 0);
    inputs.v[0].out = folded.view(rows, problem.key_tokens, 2, 1);
    return;
  }
  for (const Chunk& chunk : chunks) {
    for (const Place& place : chunk.q_places)
      if (!place.heads.empty()) inputs.q.push_back({place.heads, place.first});
    for (const Place& place : chunk.kv_places) {
      if (place.heads.empty()) continue;
      inputs.k.push_back({place.heads, place.first});
      inputs.v.push_back({place.heads, place.second});
    }
  }
  for (auto* list : {&inputs.q, &inputs.k, &inputs.v})
    std::sort(list->begin(), list->end(),
              [](const HeadSlot& a, const HeadSlot& b) { return a.heads.begin < b.heads.begin; });
}

void ContextAttention::Impl::check_tensor(const char* name, const TensorView& x, Rows rows) const {
  const bool cross = rows == Rows::kKeys && problem.key_tokens > 0;
  const Shape expected{problem.batch, cross ? problem.key_tokens : tokens.size(), problem.heads, problem.head_dim};
  if (x.shape() != expected) {
    fail("attention: {} is {}, but must be {} (batch, {}, heads, head_dim)", name, x.shape().to_string(),
         expected.to_string(), cross ? "key_tokens" : "tokens of this rank");
  }
  if (x.dtype() != problem.dtype) {
    fail("attention: {} has dtype {}, but {} was planned", name, dtype_name(x.dtype()), dtype_name(problem.dtype));
  }
  if (x.size() > 0 && problem.head_dim > 1 && x.stride(3) != 1)
    fail("attention: the last axis of {} must be contiguous, but its stride is {}", name, x.stride(3));
}

void ContextAttention::Impl::check_tensors(const TensorView& q, const TensorView& k, const TensorView& v) const {
  check_tensor("q", q, Rows::kTokens);
  check_tensor("k", k, Rows::kKeys);
  check_tensor("v", v, Rows::kKeys);
}

void ContextAttention::Impl::check_mask(const Mask& mask) const {
  const bool lengths = problem.mask == MaskKind::kKeyLengths, keys = problem.mask == MaskKind::kKeyMask;
  if (lengths && static_cast<int64_t>(mask.key_lengths.size()) != problem.batch)
    fail("attention: {} key lengths were given, but the batch is {}", mask.key_lengths.size(), problem.batch);
  if (!lengths && !mask.key_lengths.empty()) fail("attention: key lengths were given, but none were planned");
  if (!keys && mask.key_mask) fail("attention: a key mask was given, but none was planned");
  if (!keys) return;
  const Shape expected{problem.batch, all_keys()};
  if (mask.key_mask.shape() != expected) {
    fail("attention: key_mask is {}, but must be {} (batch, {})", mask.key_mask.shape().to_string(),
         expected.to_string(), problem.key_tokens > 0 ? "key_tokens" : "tokens of the whole sequence");
  }
  if (mask.key_mask.dtype() != DType::kU8 && mask.key_mask.dtype() != DType::kBool)
    fail("attention: key_mask has dtype {}, but must be U8 or BOOL", dtype_name(mask.key_mask.dtype()));
}

void ContextAttention::Impl::pack(const TensorView& q, const TensorView& k, const TensorView& v) {
  const trace::Span span(stream->lane(), "pack");
  for (const Chunk& chunk : chunks) {
    if (spread.ulysses > 1)
      for (const Place& place : chunk.q_places) copy_heads(*stream, q, place.heads, place.first, true);
    for (const Place& place : chunk.kv_places) {
      copy_heads(*stream, k, place.heads, place.first, true);
      copy_heads(*stream, v, place.heads, place.second, true);
    }
  }
}

comm::Work ContextAttention::Impl::post_exchange(const Chunk& chunk) {
  if (chunk.exchange_sends.empty() && chunk.exchange_receives.empty()) return {};
  return axis->ulysses_group().exchange(chunk.exchange_sends, chunk.exchange_receives, kExchange);
}

comm::Work ContextAttention::Impl::post_return(const Chunk& chunk) {
  if (chunk.return_sends.empty() && chunk.return_receives.empty()) return {};
  return axis->ulysses_group().exchange(chunk.return_sends, chunk.return_receives, kReturn);
}

void ContextAttention::Impl::wait(comm::Work& work, const char* what) {
  if (!work.pending()) return;
  const trace::Span span(stream->lane(), what);
  work.wait();
}

namespace {

kernels::KeyBlock masked(const kernels::KeyBlock& block, const Mask& mask) {
  kernels::KeyBlock with_mask = block;
  with_mask.key_lengths = mask.key_lengths;
  with_mask.key_mask = mask.key_mask;
  return with_mask;
}

// What folding a block takes, masks aside: a multiply and an add each for q·k and for the weighted sum of v.
double flops_of(const TensorView& q, const kernels::KeyBlock& block) {
  return 4.0 * static_cast<double>(q.size()) * static_cast<double>(block.k.extent(1));
}

}  // namespace

void ContextAttention::Impl::add(const kernels::TileCounts& counts) {
  counters.tiles_fixed += counts.fixed;
  counters.tiles_online += counts.online;
}

// Statistics of the own block, on their way to the other ring ranks.
comm::Work ContextAttention::Impl::post_statistics(const Chunk& chunk, const Mask& mask) {
  if (!chunk.statistics) return {};
  const RingStatistics& statistics = *chunk.statistics;
  {
    const trace::Span span(stream->lane(), "key statistics");
    chunk.kernel->key_statistics(*stream, masked(chunk.steps[0].blocks[0], mask), statistics.own);
  }
  if (statistics.sends.empty()) return {};
  return axis->ring_group().exchange(statistics.sends, statistics.receives, kStatistics);
}

void ContextAttention::Impl::finish_statistics(const Chunk& chunk, comm::Work& gather) {
  if (!chunk.statistics) return;
  wait(gather, kStatistics);
  kernels::FlashAttention::combine_key_statistics(chunk.statistics->parts, chunk.statistics->all);
}

// The first hop is posted before the statistics are waited for, but after they were sent: behind a K/V block on the
// same link they would be late.
void ContextAttention::Impl::fold_ring(const Chunk& chunk, const TensorView& q, const Mask& mask,
                                       comm::Work statistics) {
  if (chunk.kernel) chunk.kernel->init(*stream, *chunk.state);
  for (const PostedStep& step : chunk.steps) {
    comm::Work hop;
    if (!step.sends.empty() || !step.receives.empty())
      hop = axis->ring_group().exchange(step.sends, step.receives, kHop);
    if (&step == &chunk.steps.front()) finish_statistics(chunk, statistics);
    if (chunk.kernel) {
      double flops = 0;
      for (const kernels::KeyBlock& block : step.blocks) flops += flops_of(q, block);
      const trace::Span span(stream->lane(), "attention block", flops);
      for (const kernels::KeyBlock& block : step.blocks)
        add(chunk.kernel->accumulate(*stream, *chunk.state, q, masked(block, mask)));
    }
    wait(hop, kHop);
  }
}

// Attends one chunk: into its own O where a way back follows, else into the caller's o.
void ContextAttention::Impl::compute(const Chunk& chunk, const Mask& mask, const TensorView& o, const Direct& direct,
                                     comm::Work statistics) {
  const auto of_chunk = [&](const TensorView& all) { return all.slice(2, chunk.heads.begin, chunk.heads.end); };
  const TensorView q = direct.q ? of_chunk(direct.q) : chunk.q;
  const TensorView target = spread.ulysses > 1 || !chunk.kernel ? chunk.o : of_chunk(o);
  if (spread.ring > 1) {
    fold_ring(chunk, q, mask, std::move(statistics));
    if (!chunk.kernel) return;
    const trace::Span span(stream->lane(), "attention finish");
    chunk.kernel->finish(*stream, *chunk.state, target);
    return;
  }
  if (!chunk.kernel) return;
  kernels::KeyBlock block = masked(chunk.steps[0].blocks[0], mask);
  if (direct.k) block.k = of_chunk(direct.k);
  if (direct.v) block.v = of_chunk(direct.v);
  const trace::Span span(stream->lane(), "attention block", flops_of(q, block));
  add(chunk.kernel->attend(*stream, q, block, target));
}

void ContextAttention::Impl::unpack(const Chunk& chunk, const TensorView& o) {
  const trace::Span span(stream->lane(), "unpack");
  for (const Place& place : chunk.return_places) copy_heads(*stream, o, place.heads, place.first, false);
}

void ContextAttention::Impl::execute(const Mask& mask, const TensorView& o, const Direct& direct) {
  const bool group = spread.ulysses > 1;
  comm::Work arriving = post_exchange(chunks[0]), returning;
  comm::Work statistics = group ? comm::Work() : post_statistics(chunks[0], mask);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    const bool last = i + 1 == chunks.size();
    comm::Work current = std::move(arriving);
    if (!last) arriving = post_exchange(chunks[i + 1]);
    wait(current, kExchange);
    // Without an exchange to wait for, the statistics of the next chunk travel while this one computes.
    comm::Work ready = group ? post_statistics(chunk, mask) : std::move(statistics);
    if (!group && !last) statistics = post_statistics(chunks[i + 1], mask);
    compute(chunk, mask, o, direct, std::move(ready));
    if (!group) continue;
    comm::Work leaving = post_return(chunk);
    copy_heads(*stream, o, chunk.own_return.heads, chunk.own_return.first, false);
    if (i > 0) {
      wait(returning, kReturn);
      unpack(chunks[i - 1], o);
    }
    returning = std::move(leaving);
  }
  if (!group) return;
  wait(returning, kReturn);
  unpack(chunks.back(), o);
}

namespace {

// Adds what happens on a communicator and in the stream between construction and destruction.
class Count {
 public:
  Count(Counters& total, const parallel::ContextLayout& layout, const ContextAxis& axis, const Stream& stream)
      : total_(total), stream_(stream), copied_(stream.copied_bytes()) {
    if (layout.ulysses > 1) ulysses_ = &axis.ulysses_group();
    if (layout.ring > 1) ring_ = &axis.ring_group();
    if (ulysses_ != nullptr) ulysses_before_ = ulysses_->counters();
    if (ring_ != nullptr) ring_before_ = ring_->counters();
  }
  ~Count() {
    if (ulysses_ != nullptr) add(total_.ulysses, ulysses_before_, ulysses_->counters());
    if (ring_ != nullptr) add(total_.ring, ring_before_, ring_->counters());
    total_.bytes_copied += stream_.copied_bytes() - copied_;
  }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  static void add(Counters::Traffic& traffic, const comm::Counters& before, const comm::Counters& after) {
    traffic.bytes_sent += after.bytes_sent - before.bytes_sent;
    traffic.bytes_received += after.bytes_received - before.bytes_received;
    traffic.wait_seconds += after.wait_seconds - before.wait_seconds;
  }

  Counters& total_;
  const Stream& stream_;
  int64_t copied_;
  comm::Communicator* ulysses_ = nullptr;
  comm::Communicator* ring_ = nullptr;
  comm::Counters ulysses_before_, ring_before_;
};

}  // namespace

ContextAttention::ContextAttention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ContextAttention::~ContextAttention() = default;
ContextAttention::ContextAttention(ContextAttention&&) noexcept = default;

const Problem& ContextAttention::problem() const { return impl_->problem; }
const parallel::ContextLayout& ContextAttention::layout() const { return impl_->layout; }
Softmax ContextAttention::softmax() const { return *impl_->strategy.softmax; }
IndexRange ContextAttention::tokens() const { return impl_->tokens; }
const InputSlots& ContextAttention::input_slots() const { return impl_->inputs; }
Counters ContextAttention::counters() const { return impl_->counters; }
void ContextAttention::reset_counters() { impl_->counters = {}; }
size_t ContextAttention::workspace_bytes() const { return impl_->workspace.bytes() + impl_->state_bytes; }

const char* ContextAttention::kernel() const {
  for (const Chunk& chunk : impl_->chunks)
    if (chunk.kernel) return chunk.kernel->implementation();
  return "none";
}

void ContextAttention::run(const Mask& mask, const TensorView& o) {
  impl_->check_mask(mask);
  impl_->check_tensor("o", o, Impl::Rows::kTokens);
  const Count count(impl_->counters, impl_->layout, *impl_->axis, *impl_->stream);
  impl_->execute(mask, o, {});
}

void ContextAttention::run(const TensorView& q, const TensorView& k, const TensorView& v, const Mask& mask,
                           const TensorView& o) {
  impl_->check_mask(mask);
  impl_->check_tensors(q, k, v);
  impl_->check_tensor("o", o, Impl::Rows::kTokens);
  const Count count(impl_->counters, impl_->layout, *impl_->axis, *impl_->stream);
  Impl::Direct direct;
  if (impl_->spread.ulysses == 1) direct.q = q;
  if (impl_->spread.ranks() == 1) {
    direct.k = k;
    direct.v = v;
  } else {
    impl_->pack(q, k, v);
  }
  impl_->execute(mask, o, direct);
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream) {
  auto impl = std::make_unique<ContextAttention::Impl>();
  impl->problem = checked_problem(problem);
  impl->strategy = checked_strategy(strategy, context.size(), problem.heads);
  impl->layout = filled(impl->strategy.layout, context.size(), problem.heads);
  // Before the context is split: ranks that disagree about U would split it differently.
  check_agreement(context, agreement(impl->problem, impl->strategy, impl->layout));
  impl->axis = std::make_unique<ContextAxis>(context, impl->layout);
  impl->stream = &stream;
  impl->build();
  return ContextAttention(std::move(impl));
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, int threads) {
  if (threads < 1) fail("attention: {} threads; there must be at least one", threads);
  auto stream = std::make_unique<Stream>(threads);
  ContextAttention attention = plan(problem, strategy, context, *stream);
  attention.impl_->own_stream = std::move(stream);
  return attention;
}

}  // namespace zoetrope::attention
