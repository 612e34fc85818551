// The engine: plan() makes a rank's program (parallel/program.h) and its memory, run() executes the program op by op.
// No copy and no message beyond its.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "zoetrope/attention.h"

#include "attention/agreement.h"
#include "attention/chunk.h"
#include "attention/context_axis.h"
#include "attention/plan.h"
#include "attention/strategy.h"
#include "base/error.h"
#include "device/stream.h"
#include "kernels/narrow/narrow.h"
#include "trace/trace.h"

namespace zoetrope::attention {
namespace {

using parallel::Op;

// Copies a place's heads from or to the caller's tensor [B, S_l, H, D].
void copy_heads(Stream& stream, const TensorView& all, IndexRange heads, const TensorView& place, bool into_place) {
  if (place.size() == 0) return;
  const TensorView part = all.slice(2, heads.begin, heads.end);
  copy(stream, into_place ? place : part, into_place ? part : place);
}

}  // namespace

struct ContextAttention::Impl {
  static ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context,
                               Stream* stream, int threads = 0);
  static Impl& of(const ContextAttention& attention) { return *attention.impl_; }

  Problem problem;
  Strategy strategy;
  std::unique_ptr<Stream> own_stream;
  Stream* stream = nullptr;
  std::unique_ptr<ContextAxis> axis;

  IndexRange tokens;
  parallel::ContextLayout layout;  // as planned
  parallel::ContextLayout spread;  // that the program has: of one rank where every rank has all keys
  parallel::AttentionProgram program;
  Workspace workspace;
  size_t state_bytes = 0;
  std::vector<Chunk> chunks;
  Place wide;                                   // see wide_keys()
  std::vector<std::vector<FoldedBlock>> folds;  // of the program's, without masks
  struct Posting {                              // of a transfer
    comm::Communicator* group = nullptr;
    const char* name = nullptr;
    std::vector<comm::Segment> sends, receives;
    comm::Work work;  // pending only inside execute()
  };
  std::vector<Posting> postings;
  InputSlots inputs;
  Counters counters;

  // What one run works on.
  struct Call {
    const Mask& mask;
    const TensorView& o;
    TensorView logs;  // [B, S_l, H, 1]; empty: not wanted, or no tokens
    // [B, S_l, H, D], of a caller with buffers of its own; packed, or where nothing moves them read in place.
    bool direct = false;
    TensorView q{}, k{}, v{};
  };

  Chunk& chunk_of(const Op& op) { return chunks[static_cast<size_t>(op.chunk)]; }
  void build();
  void collect_slots();

  int64_t all_keys() const { return problem.key_tokens > 0 ? problem.key_tokens : problem.tokens; }
  enum class Rows : uint8_t { kTokens, kKeys };
  void check_tensor(const char* name, const TensorView& x, Rows rows) const;
  void check_tensors(const TensorView& q, const TensorView& k, const TensorView& v) const;
  void check_output(const TensorView& o) const;
  void check_mask(const Mask& mask) const;
  TensorView checked_logs(const TensorView& log_sum_exp) const;  // [B, S_l, H, 1]

  void execute(const Call& call);
  void pack(const Call& call);
  void narrow(const Call& call);
  void widen(const FoldedBlock& block);
  void post(Posting& posting);
  void wait(Posting& posting);
  void measure_keys(const Chunk& chunk, const Call& call);
  void fold(const Chunk& chunk, const std::vector<FoldedBlock>& blocks, const Call& call);
  void finish(const Chunk& chunk, const Call& call);
  void attend(const Chunk& chunk, const FoldedBlock& block, const Call& call);
  TensorView queries(const Chunk& chunk, const Call& call) const;
  TensorView target(const Chunk& chunk, const Call& call) const;
  TensorView target_logs(const Chunk& chunk, const Call& call) const;
  void add(const kernels::TileCounts& counts);
  void unpack(const Chunk& chunk, const Call& call);
};

void ContextAttention::Impl::build() {
  tokens = parallel::token_shard(problem.tokens, layout, axis->rank());
  spread = layout;
  parallel::Sizes sizes = sizes_of(problem, strategy.kv_exchange);
  int rank = axis->rank();
  if (problem.key_tokens > 0) {
    spread = layout.alone();
    sizes.tokens = tokens.size();
    sizes.key_tokens = problem.key_tokens;
    rank = 0;
  }
  program = attention_program(sizes, spread, *strategy.softmax, rank);
  const Buffers buffers(program.buffers, workspace);
  ChunkContext context{problem, strategy, program, *stream};
  context.tiles = plan_tiles(context);
  for (size_t i = 0; i < program.chunks.size(); ++i) chunks.emplace_back(context, static_cast<int>(i), buffers);
  for (const Op& op : program.ops) {
    Chunk& chunk = chunk_of(op);
    if (op.kind != Op::Kind::kInit || !chunk.kernel) continue;
    chunk.state = chunk.kernel->make_state();
    state_bytes += chunk.kernel->state_bytes();
  }
  for (const parallel::Fold& fold : program.folds)
    folds.push_back(folded_blocks(context, chunks[static_cast<size_t>(fold.chunk)], program.blocks_of(fold), buffers));
  wide = wide_keys(context, buffers);
  for (const parallel::Transfer& transfer : program.transfers) {
    comm::Communicator& group = transfer.kind == parallel::Transfer::Kind::kGather ? axis->context()
                                : transfer.on_ring()                               ? axis->ring_group()
                                                                                   : axis->ulysses_group();
    postings.push_back({&group,
                        transfer_name(transfer.kind),
                        segments(program.sends(transfer), buffers),
                        segments(program.receives(transfer), buffers),
                        {}});
  }
  collect_slots();
}

void ContextAttention::Impl::collect_slots() {
  if (tokens.empty() && problem.key_tokens == 0) {
    const IndexRange all{0, problem.heads};
    const TensorView nothing(workspace.book(0), problem.dtype, {problem.batch, 0, problem.heads, problem.head_dim});
    inputs.q = inputs.k = inputs.v = {{all, nothing}};
    return;
  }
  const auto keys_in = [&](const Place& place) {
    if (place.heads.empty()) return;
    inputs.k.push_back({place.heads, place.first});
    inputs.v.push_back({place.heads, place.second});
  };
  for (const Chunk& chunk : chunks) {
    for (const Place& place : chunk.q_places)
      if (!place.heads.empty()) inputs.q.push_back({place.heads, place.first});
    if (wide.heads.empty())
      for (const Place& place : chunk.kv_places) keys_in(place);
  }
  keys_in(wide);
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
  if (x.size() > 0 && !x) fail("attention: {} has no data", name);
  if (x.size() > 0 && problem.head_dim > 1 && x.stride(3) != 1)
    fail("attention: the last axis of {} must be contiguous, but its stride is {}", name, x.stride(3));
}

void ContextAttention::Impl::check_tensors(const TensorView& q, const TensorView& k, const TensorView& v) const {
  check_tensor("q", q, Rows::kTokens);
  check_tensor("k", k, Rows::kKeys);
  check_tensor("v", v, Rows::kKeys);
}

// Inputs may repeat what they hold; of outputs, rows at one place would overwrite one another.
void refuse_shared_places(const char* name, const TensorView& x) {
  for (int axis = 0; axis < x.rank() && x.size() > 0; ++axis)
    if (x.extent(axis) > 1 && x.stride(axis) == 0)
      fail("attention: axis {} of {} has stride 0, so that its {} parts would overwrite one another", axis, name,
           x.extent(axis));
}

void ContextAttention::Impl::check_output(const TensorView& o) const {
  check_tensor("o", o, Rows::kTokens);
  refuse_shared_places("o", o);
}

void ContextAttention::Impl::check_mask(const Mask& mask) const {
  const bool lengths = problem.mask == MaskKind::kKeyLengths, keys = problem.mask == MaskKind::kKeyMask;
  if (lengths && static_cast<int64_t>(mask.key_lengths.size()) != problem.batch)
    fail("attention: {} key lengths were given, but the batch is {}", mask.key_lengths.size(), problem.batch);
  for (size_t b = 0; b < mask.key_lengths.size(); ++b) {
    const int64_t length = mask.key_lengths[b];
    if (length < 0 || length > all_keys())
      fail("attention: key length {} of batch {} must be from 0 to {}", length, b, all_keys());
  }
  if (!lengths && !mask.key_lengths.empty()) fail("attention: key lengths were given, but none were planned");
  if (!keys && mask.key_mask) fail("attention: a key mask was given, but none was planned");
  if (!keys) return;
  if (!mask.key_mask) fail("attention: a key mask was planned, but none is given");
  const Shape expected{problem.batch, all_keys()};
  if (mask.key_mask.shape() != expected) {
    fail("attention: key_mask is {}, but must be {} (batch, {})", mask.key_mask.shape().to_string(),
         expected.to_string(), problem.key_tokens > 0 ? "key_tokens" : "tokens of the whole sequence");
  }
  if (mask.key_mask.dtype() != DType::kU8 && mask.key_mask.dtype() != DType::kBool)
    fail("attention: key_mask has dtype {}, but must be U8 or BOOL", dtype_name(mask.key_mask.dtype()));
}

TensorView ContextAttention::Impl::checked_logs(const TensorView& log_sum_exp) const {
  if (!log_sum_exp && tokens.empty()) return {};
  if (problem.log_sum_exp != static_cast<bool>(log_sum_exp)) {
    fail("attention: log_sum_exp was {} but {}; Problem::log_sum_exp and the argument of run() go together",
         problem.log_sum_exp ? "planned" : "not planned", log_sum_exp ? "is given" : "is not given");
  }
  if (!log_sum_exp) return {};
  const Shape expected{problem.batch, tokens.size(), problem.heads};
  if (log_sum_exp.shape() != expected || log_sum_exp.dtype() != DType::kF32) {
    fail("attention: log_sum_exp is {} {}, but must be F32 {} (batch, tokens of this rank, heads)",
         dtype_name(log_sum_exp.dtype()), log_sum_exp.shape().to_string(), expected.to_string());
  }
  refuse_shared_places("log_sum_exp", log_sum_exp);
  return log_sum_exp.split_axis(2, problem.heads, 1);
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

TensorView heads_of(const Chunk& chunk, const TensorView& all) {
  return all.slice(2, chunk.heads.begin, chunk.heads.end);
}

}  // namespace

void ContextAttention::Impl::execute(const Call& call) {
  // A transfer that an error leaves pending ends with the run, not with the plan.
  struct Pending {
    std::vector<Posting>& postings;
    ~Pending() {
      for (Posting& posting : postings) posting.work = {};
    }
  } const pending{postings};
  for (const Op& op : program.ops) {
    const Chunk& chunk = chunk_of(op);
    const auto index = static_cast<size_t>(op.index);
    switch (op.kind) {
      case Op::Kind::kPack:
        if (call.direct) pack(call);
        break;
      case Op::Kind::kNarrow:
        narrow(call);
        break;
      case Op::Kind::kPost:
        post(postings[index]);
        break;
      case Op::Kind::kWait:
        wait(postings[index]);
        break;
      case Op::Kind::kStatistics:
        if (chunk.statistics) measure_keys(chunk, call);
        break;
      case Op::Kind::kCombine:
        if (chunk.statistics)
          kernels::FlashAttention::combine_key_statistics(chunk.statistics->parts, chunk.statistics->all);
        break;
      case Op::Kind::kInit:
        if (chunk.kernel) chunk.kernel->init(*stream, *chunk.state);
        break;
      case Op::Kind::kFold:
        if (!folds[index].empty()) fold(chunk, folds[index], call);
        break;
      case Op::Kind::kFinish:
        if (chunk.kernel) finish(chunk, call);
        break;
      case Op::Kind::kAttend:
        if (!folds[index].empty()) attend(chunk, folds[index].front(), call);
        break;
      case Op::Kind::kUnpackOwn:
        copy_heads(*stream, call.o, chunk.own_output.heads, chunk.own_output.first, false);
        if (call.logs && chunk.own_logs.first)
          copy_heads(*stream, call.logs, chunk.own_logs.heads, chunk.own_logs.first, false);
        break;
      case Op::Kind::kUnpack:
        unpack(chunk, call);
        break;
    }
  }
}

void ContextAttention::Impl::pack(const Call& call) {
  const trace::Span span(stream->lane(), "pack");
  for (const Chunk& chunk : chunks) {
    if (spread.ulysses > 1)
      for (const Place& place : chunk.q_places) copy_heads(*stream, call.q, place.heads, place.first, true);
    if (!wide.heads.empty()) continue;  // keys and values are narrowed from where they are
    for (const Place& place : chunk.kv_places) {
      copy_heads(*stream, call.k, place.heads, place.first, true);
      copy_heads(*stream, call.v, place.heads, place.second, true);
    }
  }
}

void ContextAttention::Impl::narrow(const Call& call) {
  const trace::Span span(stream->lane(), "narrow keys and values");
  const kernels::NarrowFormat format = *narrow_format(strategy.kv_exchange);
  const TensorView &k = call.direct ? call.k : wide.first, &v = call.direct ? call.v : wide.second;
  kernels::Rounding of_keys, of_values;
  for (const Chunk& chunk : chunks)
    for (const Place& place : chunk.kv_places) {
      if (place.first.size() == 0) continue;
      of_keys += kernels::narrow(*stream, format, k.slice(2, place.heads.begin, place.heads.end), place.first);
      of_values += kernels::narrow(*stream, format, v.slice(2, place.heads.begin, place.heads.end), place.second);
    }
  counters.key_rounding = std::max(counters.key_rounding, of_keys.relative_l2());
  counters.value_rounding = std::max(counters.value_rounding, of_values.relative_l2());
}

void ContextAttention::Impl::widen(const FoldedBlock& block) {
  if (!block.narrowed_k) return;
  const trace::Span span(stream->lane(), "widen keys and values");
  const kernels::NarrowFormat format = *narrow_format(strategy.kv_exchange);
  kernels::widen(*stream, format, block.narrowed_k, block.keys.k);
  kernels::widen(*stream, format, block.narrowed_v, block.keys.v);
}

void ContextAttention::Impl::post(Posting& posting) {
  if (posting.sends.empty() && posting.receives.empty()) return;
  posting.work = posting.group->exchange(posting.sends, posting.receives, posting.name);
}

void ContextAttention::Impl::wait(Posting& posting) {
  if (!posting.work.pending()) return;
  const trace::Span span(stream->lane(), posting.name);
  posting.work.wait();
}

void ContextAttention::Impl::measure_keys(const Chunk& chunk, const Call& call) {
  widen(chunk.statistics->keys);
  const trace::Span span(stream->lane(), "key statistics");
  chunk.kernel->key_statistics(*stream, masked(chunk.statistics->keys.keys, call.mask), chunk.statistics->own);
}

TensorView ContextAttention::Impl::queries(const Chunk& chunk, const Call& call) const {
  return call.direct && spread.ulysses == 1 ? heads_of(chunk, call.q) : chunk.q;
}

TensorView ContextAttention::Impl::target(const Chunk& chunk, const Call& call) const {
  return spread.ulysses == 1 ? heads_of(chunk, call.o) : chunk.o;
}

TensorView ContextAttention::Impl::target_logs(const Chunk& chunk, const Call& call) const {
  if (!problem.log_sum_exp) return {};
  return (spread.ulysses == 1 ? heads_of(chunk, call.logs) : chunk.logs).select(3, 0);
}

void ContextAttention::Impl::fold(const Chunk& chunk, const std::vector<FoldedBlock>& blocks, const Call& call) {
  const TensorView q = queries(chunk, call);
  double flops = 0;
  for (const FoldedBlock& block : blocks) flops += flops_of(q, block.keys);
  const trace::Span span(stream->lane(), "attention block", flops);
  for (const FoldedBlock& block : blocks) {
    widen(block);
    add(chunk.kernel->accumulate(*stream, *chunk.state, q, masked(block.keys, call.mask)));
  }
}

void ContextAttention::Impl::finish(const Chunk& chunk, const Call& call) {
  const trace::Span span(stream->lane(), "attention finish");
  chunk.kernel->finish(*stream, *chunk.state, target(chunk, call), target_logs(chunk, call));
}

void ContextAttention::Impl::attend(const Chunk& chunk, const FoldedBlock& keys, const Call& call) {
  const TensorView q = queries(chunk, call);
  widen(keys);
  kernels::KeyBlock block = masked(keys.keys, call.mask);
  if (call.direct && spread.ranks() == 1) {
    block.k = heads_of(chunk, call.k);
    block.v = heads_of(chunk, call.v);
  }
  const trace::Span span(stream->lane(), "attention block", flops_of(q, block));
  add(chunk.kernel->attend(*stream, q, block, target(chunk, call), target_logs(chunk, call)));
}

void ContextAttention::Impl::add(const kernels::TileCounts& counts) {
  counters.tiles_fixed += counts.fixed;
  counters.tiles_online += counts.online;
  counters.heads_int8 += counts.int8_heads;
  counters.heads_as_computed += counts.bf16_heads;
  counters.int8_error = std::max(counters.int8_error, counts.int8_error);
}

void ContextAttention::Impl::unpack(const Chunk& chunk, const Call& call) {
  const trace::Span span(stream->lane(), "unpack");
  for (const Place& place : chunk.output_places) copy_heads(*stream, call.o, place.heads, place.first, false);
  for (const Place& place : chunk.log_places) copy_heads(*stream, call.logs, place.heads, place.first, false);
}

namespace {

// Adds what happens on a communicator and in the stream between construction and destruction.
class Count {
 public:
  Count(Counters& total, const parallel::ContextLayout& layout, const ContextAxis& axis, const Stream& stream)
      : total_(total), stream_(stream), copied_(stream.copied_bytes()) {
    if (layout.ulysses > 1) watch(axis.ulysses_group(), total.ulysses);
    if (layout.ring > 1) watch(axis.ring_group(), total.ring);
    if (layout.gather > 1) watch(axis.context(), total.gather);
  }
  ~Count() {
    for (const Watched& watched : std::span(watched_.data(), count_))
      add(*watched.total, watched.before, watched.group->counters());
    total_.bytes_copied += stream_.copied_bytes() - copied_;
  }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  struct Watched {
    comm::Communicator* group = nullptr;
    Counters::Traffic* total = nullptr;
    comm::Counters before;
  };
  void watch(comm::Communicator& group, Counters::Traffic& total) {
    watched_[count_++] = {&group, &total, group.counters()};
  }
  static void add(Counters::Traffic& traffic, const comm::Counters& before, const comm::Counters& after) {
    traffic.bytes_sent += after.bytes_sent - before.bytes_sent;
    traffic.bytes_received += after.bytes_received - before.bytes_received;
    traffic.wait_seconds += after.wait_seconds - before.wait_seconds;
  }

  Counters& total_;
  const Stream& stream_;
  int64_t copied_;
  std::array<Watched, 2> watched_;  // Ulysses and ring, or the gather; in place, because run() allocates nothing
  size_t count_ = 0;
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

void ContextAttention::run(const Mask& mask, const TensorView& o, const TensorView& log_sum_exp) {
  impl_->check_mask(mask);
  impl_->check_output(o);
  const TensorView logs = impl_->checked_logs(log_sum_exp);
  const Count count(impl_->counters, impl_->layout, *impl_->axis, *impl_->stream);
  impl_->execute({mask, o, logs});
}

void ContextAttention::run(const TensorView& q, const TensorView& k, const TensorView& v, const Mask& mask,
                           const TensorView& o, const TensorView& log_sum_exp) {
  impl_->check_mask(mask);
  impl_->check_tensors(q, k, v);
  impl_->check_output(o);
  const TensorView logs = impl_->checked_logs(log_sum_exp);
  const Count count(impl_->counters, impl_->layout, *impl_->axis, *impl_->stream);
  impl_->execute({mask, o, logs, true, q, k, v});
}

ContextAttention ContextAttention::Impl::plan(const Problem& problem, const Strategy& strategy,
                                              comm::Communicator& context, Stream* stream, int threads) {
  auto impl = std::make_unique<Impl>();
  impl->problem = checked_problem(problem);
  impl->strategy = checked_strategy(strategy, context.size(), problem.heads, parallel::kFieldNames);
  check_kv_exchange(strategy.kv_exchange, problem.dtype, parallel::kFieldNames);
  check_attention_dtype(strategy.attention_dtype, problem.dtype);
  check_int8_limit(strategy.attention_int8_limit);
  impl->layout = filled(impl->strategy.layout, context.size(), problem.heads, parallel::kFieldNames);
  // Before the context is split: ranks that disagree about U would split it differently.
  check_agreement(context, impl->problem, impl->strategy, impl->layout);
  impl->axis = std::make_unique<ContextAxis>(context, impl->layout);
  if (stream == nullptr) impl->own_stream = std::make_unique<Stream>(threads);
  impl->stream = stream != nullptr ? stream : impl->own_stream.get();
  impl->build();
  return ContextAttention(std::move(impl));
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream) {
  return ContextAttention::Impl::plan(problem, strategy, context, &stream);
}

ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, int threads) {
  constexpr int kMostThreads = 4096;
  if (threads < 1 || threads > kMostThreads) fail("attention: {} threads; 1 to {} can be had", threads, kMostThreads);
  return ContextAttention::Impl::plan(problem, strategy, context, nullptr, threads);
}

const kernels::FlashProblem* kernel_problem(const ContextAttention& attention) {
  const Chunk& first = ContextAttention::Impl::of(attention).chunks[0];
  return first.kernel ? &first.kernel->problem() : nullptr;
}

void set_tiles(ContextAttention& attention, const kernels::TileSizes& sizes) {
  for (Chunk& chunk : ContextAttention::Impl::of(attention).chunks) {
    if (!chunk.kernel) continue;
    kernels::FlashProblem problem = chunk.kernel->problem();
    problem.tiles = sizes;
    *chunk.kernel = kernels::FlashAttention(problem);  // its state does not depend on tiles
  }
}

}  // namespace zoetrope::attention
