// The engine: plan() and run(). One run on one rank, for every head chunk (one unless asked for more):
//
//   pack*        q, k, v of the own tokens into the places of the exchange          (* unless a model wrote there)
//   exchange     tokens for heads inside the Ulysses group; lands in place
//   ring         post the next K/V blocks, fold the current ones, wait, until all blocks are folded; finish
//   way back     heads for tokens; the own share is unpacked while the others travel, then the others
//
// No copy and no message beyond these; schedule/ lists both and their sums.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <optional>

#include "zoetrope/attention.h"

#include "attention/chunk.h"
#include "attention/strategy.h"
#include "base/error.h"
#include "device/stream.h"
#include "mesh/context_axis.h"
#include "trace/trace.h"

namespace zoetrope::attention {
namespace {

// Names of the operations, as time-out messages and traces show them.
constexpr const char* kExchange = "ulysses exchange";
constexpr const char* kHop = "ring hop";
constexpr const char* kReturn = "ulysses return";

// Everything that all ranks must agree on, by name.
struct Agreement {
  static constexpr const char* kNames[] = {"batch",
                                           "tokens",
                                           "heads",
                                           "head_dim",
                                           "dtype",
                                           "scale (float bits)",
                                           "mask",
                                           "ring",
                                           "ring_direction",
                                           "softmax",
                                           "ulysses_attention_chunks",
                                           "kernel (name hash)",
                                           "block_q",
                                           "block_kv",
                                           "use_k_smoothing",
                                           "deterministic",
                                           "enable_tile_search"};
  static constexpr size_t kFields = std::size(kNames);
  std::array<int64_t, kFields> values;
};

Agreement agreement(const Problem& p, const Strategy& s) {
  int32_t scale = 0;
  static_assert(sizeof scale == sizeof p.scale);
  std::memcpy(&scale, &p.scale, sizeof scale);
  int64_t kernel = 0;
  for (const char c : s.kernel) kernel = (kernel * 131 + c) & 0xffffffff;
  return {{p.batch, p.tokens, p.heads, p.head_dim, static_cast<int64_t>(p.dtype), scale, static_cast<int64_t>(p.mask),
           s.ring, static_cast<int64_t>(s.direction), static_cast<int64_t>(s.softmax), s.head_chunks, kernel, s.block_q,
           s.block_kv, s.k_smoothing, s.deterministic, s.tile_search}};
}

// Ranks that disagree would wait for messages that never come, or fold rows that are not theirs.
void check_agreement(comm::Communicator& context, const Agreement& mine) {
  if (context.size() == 1) return;
  std::vector<Agreement> all(static_cast<size_t>(context.size()));
  context.all_gather(&mine, all.data(), sizeof mine, "attention plan");
  for (int rank = 0; rank < context.size(); ++rank) {
    for (size_t i = 0; i < Agreement::kFields; ++i) {
      const int64_t here = all[0].values[i], there = all[static_cast<size_t>(rank)].values[i];
      if (here == there) continue;
      fail("attention: rank {} planned {} {}, but rank {} {}; all ranks must bring the same problem and strategy",
           context.world_rank(0), Agreement::kNames[i], here, context.world_rank(rank), there);
    }
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
  std::unique_ptr<mesh::ContextAxis> own_axis;
  Stream* stream = nullptr;
  mesh::ContextAxis* axis = nullptr;

  IndexRange tokens;
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

  void check_tensor(const char* name, const TensorView& x) const;
  void check_mask(const Mask& mask) const;
  void pack(const TensorView& q, const TensorView& k, const TensorView& v);

  void execute(const Mask& mask, const TensorView& o, const Direct& direct);
  comm::Work post_exchange(const Chunk& chunk);
  comm::Work post_return(const Chunk& chunk);
  void wait(comm::Work& work, const char* what);
  void compute(const Chunk& chunk, const Mask& mask, const TensorView& o, const Direct& direct);
  void fold_ring(const Chunk& chunk, const TensorView& q, const Mask& mask);
  void unpack(const Chunk& chunk, const TensorView& o);
};

void ContextAttention::Impl::build() {
  tokens = schedule::token_shard(problem.tokens, axis->degree(), axis->rank());
  const ChunkContext context{problem, strategy, {strategy.ulysses, strategy.ring}, axis->rank(), stream->device()};
  const IndexRange share = schedule::head_share(problem.heads, strategy.ulysses, axis->ulysses_index());
  slots.emplace(context, schedule::head_chunk(share, strategy.head_chunks, 0).size(), workspace);
  chunks.reserve(static_cast<size_t>(strategy.head_chunks));
  for (int i = 0; i < strategy.head_chunks; ++i) {
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

void ContextAttention::Impl::check_tensor(const char* name, const TensorView& x) const {
  const Shape expected{problem.batch, tokens.size(), problem.heads, problem.head_dim};
  if (x.shape() != expected) {
    fail("attention: {} is {}, but must be {} (batch, tokens of this rank, heads, head_dim)", name,
         x.shape().to_string(), expected.to_string());
  }
  if (x.dtype() != problem.dtype) {
    fail("attention: {} has dtype {}, but {} was planned", name, dtype_name(x.dtype()), dtype_name(problem.dtype));
  }
  if (x.size() > 0 && problem.head_dim > 1 && x.stride(3) != 1)
    fail("attention: the last axis of {} must be contiguous, but its stride is {}", name, x.stride(3));
}

void ContextAttention::Impl::check_mask(const Mask& mask) const {
  const bool lengths = problem.mask == MaskKind::kKeyLengths, keys = problem.mask == MaskKind::kKeyMask;
  if (lengths && static_cast<int64_t>(mask.key_lengths.size()) != problem.batch)
    fail("attention: {} key lengths were given, but the batch is {}", mask.key_lengths.size(), problem.batch);
  if (!lengths && !mask.key_lengths.empty()) fail("attention: key lengths were given, but none were planned");
  if (!keys && mask.key_mask) fail("attention: a key mask was given, but none was planned");
  if (!keys) return;
  const Shape expected{problem.batch, problem.tokens};
  if (mask.key_mask.shape() != expected) {
    fail("attention: key_mask is {}, but must be {} (batch, tokens of the whole sequence)",
         mask.key_mask.shape().to_string(), expected.to_string());
  }
  if (mask.key_mask.dtype() != DType::kU8 && mask.key_mask.dtype() != DType::kBool)
    fail("attention: key_mask has dtype {}, but must be U8 or BOOL", dtype_name(mask.key_mask.dtype()));
}

void ContextAttention::Impl::pack(const TensorView& q, const TensorView& k, const TensorView& v) {
  const trace::Span span(stream->lane(), "pack");
  for (const Chunk& chunk : chunks) {
    if (strategy.ulysses > 1)
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

void ContextAttention::Impl::fold_ring(const Chunk& chunk, const TensorView& q, const Mask& mask) {
  if (chunk.kernel) chunk.kernel->init(*stream, *chunk.state);
  for (const PostedStep& step : chunk.steps) {
    comm::Work hop;
    if (!step.sends.empty() || !step.receives.empty())
      hop = axis->ring_group().exchange(step.sends, step.receives, kHop);
    if (chunk.kernel) {
      const trace::Span span(stream->lane(), "attention block");
      for (kernels::KeyBlock block : step.blocks) {
        block.key_lengths = mask.key_lengths;
        block.key_mask = mask.key_mask;
        chunk.kernel->accumulate(*stream, *chunk.state, q, block);
      }
    }
    wait(hop, kHop);
  }
}

// Attends one chunk: into its own O where a way back follows, else into the caller's o.
void ContextAttention::Impl::compute(const Chunk& chunk, const Mask& mask, const TensorView& o, const Direct& direct) {
  const auto of_chunk = [&](const TensorView& all) { return all.slice(2, chunk.heads.begin, chunk.heads.end); };
  const TensorView q = direct.q ? of_chunk(direct.q) : chunk.q;
  const TensorView target = strategy.ulysses > 1 || !chunk.kernel ? chunk.o : of_chunk(o);
  if (strategy.ring > 1) {
    fold_ring(chunk, q, mask);
    if (!chunk.kernel) return;
    const trace::Span span(stream->lane(), "attention finish");
    chunk.kernel->finish(*stream, *chunk.state, target);
    return;
  }
  if (!chunk.kernel) return;
  const trace::Span span(stream->lane(), "attention block");
  kernels::KeyBlock block = chunk.steps[0].blocks[0];
  if (direct.k) block.k = of_chunk(direct.k);
  if (direct.v) block.v = of_chunk(direct.v);
  block.key_lengths = mask.key_lengths;
  block.key_mask = mask.key_mask;
  chunk.kernel->attend(*stream, q, block, target);
}

void ContextAttention::Impl::unpack(const Chunk& chunk, const TensorView& o) {
  const trace::Span span(stream->lane(), "unpack");
  for (const Place& place : chunk.return_places) copy_heads(*stream, o, place.heads, place.first, false);
}

void ContextAttention::Impl::execute(const Mask& mask, const TensorView& o, const Direct& direct) {
  const bool group = strategy.ulysses > 1;
  comm::Work arriving = post_exchange(chunks[0]), returning;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    comm::Work current = std::move(arriving);
    if (i + 1 < chunks.size()) arriving = post_exchange(chunks[i + 1]);
    wait(current, kExchange);
    compute(chunk, mask, o, direct);
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
  Count(Counters& total, const Strategy& strategy, const mesh::ContextAxis& axis, const Stream& stream)
      : total_(total), stream_(stream), copied_(stream.copied_bytes()) {
    if (strategy.ulysses > 1) ulysses_ = &axis.ulysses_group();
    if (strategy.ring > 1) ring_ = &axis.ring_group();
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
const Strategy& ContextAttention::strategy() const { return impl_->strategy; }
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
  impl_->check_tensor("o", o);
  const Count count(impl_->counters, impl_->strategy, *impl_->axis, *impl_->stream);
  impl_->execute(mask, o, {});
}

void ContextAttention::run(const TensorView& q, const TensorView& k, const TensorView& v, const Mask& mask,
                           const TensorView& o) {
  impl_->check_mask(mask);
  impl_->check_tensor("q", q);
  impl_->check_tensor("k", k);
  impl_->check_tensor("v", v);
  impl_->check_tensor("o", o);
  const Count count(impl_->counters, impl_->strategy, *impl_->axis, *impl_->stream);
  Impl::Direct direct;
  if (impl_->strategy.ulysses == 1) direct.q = q;
  if (impl_->axis->degree() == 1) {
    direct.k = k;
    direct.v = v;
  } else {
    impl_->pack(q, k, v);
  }
  impl_->execute(mask, o, direct);
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, mesh::ContextAxis& axis, Stream& stream) {
  auto impl = std::make_unique<ContextAttention::Impl>();
  impl->problem = checked_problem(problem);
  Strategy of_axis = strategy;
  if (strategy.ulysses != 0 && strategy.ulysses != axis.ulysses()) {
    fail("attention: ulysses={} was asked for, but the axis is split with ulysses={}; leave it 0 to follow the axis",
         strategy.ulysses, axis.ulysses());
  }
  of_axis.ulysses = axis.ulysses();
  impl->strategy = checked_strategy(of_axis, axis.degree(), problem.heads);
  check_agreement(axis.communicator(), agreement(impl->problem, impl->strategy));
  impl->axis = &axis;
  impl->stream = &stream;
  impl->build();
  return ContextAttention(std::move(impl));
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream) {
  const Problem checked = checked_problem(problem);
  const Strategy filled = checked_strategy(strategy, context.size(), checked.heads);
  // Before the axis is split: ranks that disagree about U would split it differently.
  check_agreement(context, agreement(checked, filled));
  auto axis = std::make_unique<mesh::ContextAxis>(context, filled.ulysses);
  ContextAttention attention = plan(problem, strategy, *axis, stream);
  attention.impl_->own_axis = std::move(axis);
  return attention;
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, int threads) {
  if (threads < 1) fail("attention: {} threads; there must be at least one", threads);
  auto stream = std::make_unique<Stream>(threads);
  ContextAttention attention = plan(problem, strategy, context, *stream);
  attention.impl_->own_stream = std::move(stream);
  return attention;
}

}  // namespace zoetrope::attention
