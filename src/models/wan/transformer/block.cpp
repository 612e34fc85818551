// One block: self-attention, attention to the context, feed-forward (wan.md section 2.4). The same for every stream.
#include "base/error.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/state.h"
#include "trace/elapsed.h"
#include "trace/trace.h"

namespace zoetrope::wan {

io::WeightStream::Use Transformer::State::wait_for_weights(UseOf use_of, size_t index) {
  if (weights->stream() == nullptr) return (*weights.*use_of)(index);
  const trace::Span span(stream.lane(), "wait for weights");
  const auto begin = trace::Clock::now();
  io::WeightStream::Use use = (*weights.*use_of)(index);
  weights_wait_seconds += trace::seconds_since(begin);
  return use;
}

void Transformer::State::run_block(const BlockCall& block, const std::string& name, const Probe& probe) {
  const io::WeightStream::Use use = wait_for_weights(&TransformerWeights::use_block, block.index);
  const std::string after_cross = probe ? name + ".cross_attention" : std::string();
  self_attention(block);
  if (probe) observe(probe, name + ".self_attention", attended());
  for_each_chunk(block.samples, [&](const Chunk& chunk) {
    const LinearWeights& out = block.weights.self_out;
    const TensorView o = rows(attended(), chunk), n = operand(chunk.rows(), out.weight);
    add_gated("out", as_operand(stream, o, out.weight, n), out, block, chunk, kGate1);
    cross_attention(block, chunk);
    observe(probe, after_cross, rows(block.x, chunk));
    feed_forward(block, chunk);
  });
  if (tokens_local == 0) observe(probe, after_cross, block.x);  // every rank shows the same names
  observe(probe, name, block.x);
}

// LN(x), then modulated or affine, as the operand of the next multiplication, rounded to W.
void Transformer::State::normalise(const TensorView& x_rows, const Affine& affine, const TensorView& out) const {
  const auto row = [&](const TensorView& v) { return v ? v.reshape({1, 1, v.extent(0)}) : v; };
  kernels::layer_norm(stream, {.x = one_sample(x_rows),
                               .weight = affine.weight,
                               .bias = affine.bias,
                               .scale = row(affine.scale),
                               .shift = row(affine.shift),
                               .eps = static_cast<float>(config.eps),
                               .out = one_sample(out),
                               .round_to_bf16 = dtype == DType::kBF16,
                               .implementation = {}});
}

TensorView Transformer::State::modulated(const char* span_name, const TensorView& x_rows, const Chunk& chunk,
                                         const TensorView& tables, int64_t scale, int64_t shift,
                                         const kernels::PackedMatrix& w) const {
  const trace::Span span(stream.lane(), span_name);
  const TensorView out = operand(chunk.rows(), w);
  for_each_run(chunk, [&](IndexRange run, int64_t set) {
    const TensorView table = tables.select(0, set);
    Affine affine;
    affine.scale = table.select(0, scale);
    affine.shift = table.select(0, shift);
    normalise(x_rows.slice(0, run.begin, run.end), affine, out.slice(0, run.begin, run.end));
  });
  return out;
}

void Transformer::State::multiply(const char* span_name, const TensorView& x, const LinearWeights& layer,
                                  kernels::PackedGemm call) const {
  const double terms = static_cast<double>(x.extent(0)) * static_cast<double>(layer.weight.n * layer.weight.k);
  const trace::Span span(stream.lane(), span_name, 2 * terms);
  call.x = x;
  call.w = layer.weight;
  call.bias = layer.bias;
  kernels::packed_gemm(stream, call);
}

TensorView Transformer::State::gate_of(const BlockCall& block, std::optional<ModulationRow> gate, int64_t set) const {
  return gate ? modulation(block.index).select(0, set).select(0, *gate) : TensorView();
}

// x += gate·layer(n) in the chunk's rows of a residual stream, each token with its own gate, or with 1.
void Transformer::State::add_gated(const char* span_name, const TensorView& n, const LinearWeights& layer,
                                   const BlockCall& block, const Chunk& chunk,
                                   std::optional<ModulationRow> gate) const {
  kernels::PackedGemm call;
  if (sum != nullptr) {
    call.out = buffers.sums.view().slice(0, 0, chunk.rows());
    multiply(span_name, n, layer, call);
    return add_sum(call.out, block, chunk, gate);
  }
  const TensorView x = rows(block.x, chunk);
  const auto add = [&](IndexRange run, int64_t set) {
    call.out = call.residual = x.slice(0, run.begin, run.end);
    call.gate = gate_of(block, gate, set);
    multiply(span_name, n.slice(0, run.begin, run.end), layer, call);
  };
  if (gate) for_each_run(chunk, add);
  else add({0, chunk.rows()}, 0);
}

// The same where `sums` [M, d] F32 is what this rank has of layer(n): added up, rounded to W, then added to the rows of
// x that are this rank's to finish, which the others get from it.
void Transformer::State::add_sum(const TensorView& sums, const BlockCall& block, const Chunk& chunk,
                                 std::optional<ModulationRow> gate) const {
  const trace::Span span(stream.lane(), "sums over tensor ranks");
  const IndexRange mine = sum->add_up_rows(stream, sums);
  Chunk part = chunk;
  part.begin = chunk.begin + mine.begin;
  part.end = chunk.begin + mine.end;
  TensorView y = sums.slice(0, mine.begin, mine.end);
  if (dtype != DType::kF32 && !mine.empty()) {
    const TensorView rounded = wide_part(0, mine.size(), config.inner_dim());
    kernels::convert(stream, y, rounded);
    y = rounded;
  }
  const TensorView x = rows(block.x, part);
  for_each_run(part, [&](IndexRange run, int64_t set) {
    const TensorView to = one_sample(x.slice(0, run.begin, run.end)), gates = gate_of(block, gate, set);
    kernels::gated_add(stream, to, one_sample(y.slice(0, run.begin, run.end)),
                       gates ? gates.reshape({1, 1, gates.extent(0)}) : gates, to);
  });
  sum->gather_rows(rows(block.x, chunk));
}

// The sums of x² over all heads of each of these tensors [M, A], as rows of [n, M] F32; empty where this rank has all.
TensorView Transformer::State::add_up_squares(std::initializer_list<TensorView> of) const {
  if (sum == nullptr) return {};
  const trace::Span span(stream.lane(), "sums over tensor ranks: squares");
  const int64_t m = of.begin()->extent(0), count = static_cast<int64_t>(of.size());
  const TensorView squares(buffers.sums.view().raw(), DType::kF32, {count, m});
  int64_t i = 0;
  for (const TensorView& x : of) kernels::sum_of_squares(stream, x, squares.select(0, i++));
  sum->add_up(stream, squares.reshape({count * m, 1}));
  return squares;
}

// One sample's tokens [M, A] as heads; rotated by the positions of `rotate` where that is given.
void Transformer::State::write_heads(const TensorView& from, const HeadNorm& norm, const Chunk* rotate,
                                     std::span<const HeadSlot> slots) const {
  const auto table = [&](const Tensor& whole) {
    return rotate != nullptr ? whole.view().slice(0, rotate->begin, rotate->end) : TensorView();
  };
  kernels::rms_norm_rope(stream, {.x = heads(one_sample(from)),
                                  .weight = norm.weight,
                                  .cos = table(rope.cos),
                                  .sin = table(rope.sin),
                                  .eps = static_cast<float>(config.eps),
                                  .slots = slots,
                                  .squares = norm.squares,
                                  .all_heads = config.num_attention_heads,
                                  .implementation = {}});
}

// Into the chunk's rows of attention's input slots.
void Transformer::State::write_slots(const TensorView& from, const HeadNorm& norm, const Chunk& chunk, bool rotate,
                                     std::span<const HeadSlot> slots) {
  chunk_slots.clear();
  for (const HeadSlot& slot : slots) {
    const TensorView sample = slot.out.slice(0, chunk.place, chunk.place + 1);
    chunk_slots.push_back({slot.heads, sample.slice(1, chunk.begin, chunk.end)});
  }
  write_heads(from, norm, rotate ? &chunk : nullptr, chunk_slots);
}

// x += gate1·to_out(attention(n)), n = LN(x)·(1 + scale1) + shift1; the last step by the caller, chunk by chunk.
void Transformer::State::self_attention(const BlockCall& block) {
  const int64_t a = weights->heads_width();
  const TransformerBlockWeights& w = block.weights;
  const attention::InputSlots& slots = attention->input_slots();
  for_each_chunk(block.samples, [&](const Chunk& chunk) {
    const TensorView n =
        modulated("norm", rows(block.x, chunk), chunk, modulation(block.index), kScale1, kShift1, w.self_qkv.weight);
    const TensorView qkv = wide_part(0, chunk.rows(), 3 * a);
    kernels::PackedGemm call;
    call.out = qkv;
    multiply("qkv", n, w.self_qkv, call);
    const TensorView q = qkv.slice(1, 0, a), k = qkv.slice(1, a, 2 * a), v = qkv.slice(1, 2 * a, 3 * a);
    const TensorView squares = add_up_squares({q, k});
    const auto of = [&](int64_t which) { return squares ? squares.select(0, which) : squares; };
    const trace::Span span(stream.lane(), "norm, rope");
    write_slots(q, {w.self_norm_q, of(0)}, chunk, true, slots.q);
    write_slots(k, {w.self_norm_k, of(1)}, chunk, true, slots.k);
    write_slots(v, {}, chunk, false, slots.v);
  });
  const trace::Span span(stream.lane(), "self-attention");
  attention->run({}, heads(attended()));  // collective: also where this rank has no tokens
}

// x += to_out(attention(n, context)), n = LN(x)·norm2
void Transformer::State::cross_attention(const BlockCall& block, const Chunk& chunk) {
  const int64_t m = chunk.rows(), a = weights->heads_width();
  const TransformerBlockWeights& w = block.weights;
  const TensorView x = rows(block.x, chunk);
  TensorView n = operand(m, w.cross_q.weight);
  if (config.cross_attn_norm) {
    const trace::Span span(stream.lane(), "cross: norm");
    Affine affine;
    affine.weight = w.cross_norm_weight;
    affine.bias = w.cross_norm_bias;
    normalise(x, affine, n);
  } else {
    n = as_operand(stream, x, w.cross_q.weight, n);
  }
  const TensorView raw = wide_part(0, m, a), q = wide_part(1, m, a), o = wide_part(2, m, a);
  kernels::PackedGemm call;
  call.out = raw;
  multiply("cross: q", n, w.cross_q, call);
  const TensorView squares = add_up_squares({raw});
  {
    const trace::Span span(stream.lane(), "cross: norm of q");
    const HeadSlot slot{{0, weights->heads()}, heads(one_sample(q))};
    write_heads(raw, {w.cross_norm_q, squares ? squares.select(0, 0) : squares}, nullptr, {&slot, 1});
  }
  attend_context(block, chunk, q, o, raw);
  add_gated("cross: out", as_operand(stream, o, w.cross_out.weight, operand(m, w.cross_out.weight)), w.cross_out, block,
            chunk, {});
}

// o = the sum over the context's sources of softmax(q·kᵀ)·v, each rounded to W, and so their sum. All [M, A].
void Transformer::State::attend_context(const BlockCall& block, const Chunk& chunk, const TensorView& q,
                                        const TensorView& o, const TensorView& spare) const {
  for (size_t source = 0; source < cross.size(); ++source) {
    const double pairs = static_cast<double>(chunk.rows() * context->rows(source));
    const trace::Span span(stream.lane(), "cross: attention", 4 * pairs * static_cast<double>(weights->heads_width()));
    const TextContext::KeyRows of = context->keys(source, block.index, chunk.sample);
    kernels::KeyBlock keys;
    keys.k = of.k;
    keys.v = of.v;
    keys.key_lengths = of.key_lengths;
    const CrossKernels& kernels = cross[source];
    const bool whole = chunk.rows() == kernels.whole.problem().query_tokens;
    const TensorView out = source == 0 ? o : spare;
    (whole ? kernels.whole : *kernels.last).attend(stream, heads(one_sample(q)), keys, heads(one_sample(out)));
    if (source > 0) kernels::gated_add(stream, one_sample(o), one_sample(out), {}, one_sample(o));
  }
}

// x += gate2·FFN(n), n = LN(x)·(1 + scale2) + shift2
void Transformer::State::feed_forward(const BlockCall& block, const Chunk& chunk) {
  const TransformerBlockWeights& w = block.weights;
  const TensorView n =
      modulated("ffn: norm", rows(block.x, chunk), chunk, modulation(block.index), kScale2, kShift2, w.ffn_in.weight);
  const int64_t m = chunk.rows(), width = w.ffn_in.weight.n;
  const TensorView hidden(buffers.wide.view().raw(), kernels::operand_dtype(w.ffn_out.weight), {m, width},
                          {width + kOperandPadding, 1});
  kernels::PackedGemm call;
  call.activation = kernels::Activation::kGeluTanh;
  call.out = hidden;
  call.round_to_bf16 = dtype == DType::kBF16 && hidden.dtype() == DType::kF32;
  multiply("ffn: in", n, w.ffn_in, call);
  add_gated("ffn: out", hidden, w.ffn_out, block, chunk, kGate2);
}

}  // namespace zoetrope::wan
