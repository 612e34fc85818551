#include "models/wan/transformer/transformer.h"

#include <cmath>
#include <optional>
#include <string>

#include "zoetrope/attention.h"

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/rope/rope.h"
#include "models/wan/transformer/linear.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/timestep.h"
#include "models/wan/transformer/workspace.h"
#include "trace/trace.h"

namespace zoetrope::wan {

namespace {

// Rows of a block's modulation, in the order of scale_shift_table.
enum ModulationRow : int64_t { kShift1, kScale1, kGate1, kShift2, kScale2, kGate2, kModulationRows };
enum HeadRow : int64_t { kHeadShift, kHeadScale, kHeadRows };

}  // namespace

TokenGrid token_grid(const TransformerConfig& config, const Shape& latent) {
  ZT_CHECK(latent.rank() == 3, "latent size is {}", latent.to_string());
  const auto& patch = config.patch_size;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t cell = patch[static_cast<size_t>(axis)];
    if (latent[axis] < 1 || latent[axis] % cell != 0) {
      fail(
          "latents of {} cells (frames, height, width) cannot be cut into patches of {}×{}×{}; {} must be a multiple "
          "of {}",
          latent.to_string(), patch[0], patch[1], patch[2], latent[axis], cell);
    }
    if (latent[axis] / cell > config.rope_max_seq_len) {
      fail("latents of {} cells are {} patches along one axis, but the model knows {} positions", latent.to_string(),
           latent[axis] / cell, config.rope_max_seq_len);
    }
  }
  return {latent[0] / patch[0], latent[1] / patch[1], latent[2] / patch[2]};
}

namespace {

// Some tokens of one sample.
struct Chunk {
  int64_t sample, begin, end;
  int64_t rows() const { return end - begin; }
};

// [M, d] as [1, M, d].
TensorView one_sample(const TensorView& rows) {
  return {rows.raw(), rows.dtype(), {1, rows.extent(0), rows.extent(1)}, {0, rows.stride(0), 1}};
}

}  // namespace

// The residual stream is the only tensor that a whole block is written to; everything between lives for a chunk of
// tokens. W stands for the model dtype, M for a chunk's rows.
struct Transformer::State {
  State(std::shared_ptr<const TransformerWeights> shared, Stream& rank_stream)
      : weights(std::move(shared)), stream(rank_stream), config(weights->config), dtype(weights->dtype) {}

  void plan_cross();
  void embed_tokens(const TensorView& latents, const Probe& probe);
  void embed_time(std::span<const float> timesteps, const Probe& probe);
  void modulate();
  void self_attention(const TransformerBlockWeights& block, size_t index);
  void cross_attention(const TransformerBlockWeights& block, size_t index, const Chunk& chunk);
  void feed_forward(const TransformerBlockWeights& block, size_t index, const Chunk& chunk);
  void project_out(const TensorView& velocity_tokens, const Probe& probe);

  template <typename Body>
  void for_each_chunk(Body&& body) const {
    const int64_t rows = chunk_rows(tokens_local);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t begin = 0; begin < tokens_local; begin += rows)
        body(Chunk{b, begin, std::min(begin + rows, tokens_local)});
  }
  // [M, d] of a tensor [B, S, d].
  static TensorView rows(const TensorView& all, const Chunk& chunk) {
    return all.select(0, chunk.sample).slice(0, chunk.begin, chunk.end);
  }
  TensorView heads(const TensorView& value) const {
    return value.split_axis(value.rank() - 1, config.num_attention_heads, config.attention_head_dim);
  }
  TensorView modulation(size_t block, ModulationRow row, int64_t sample) const {  // [d]
    return buffers.modulation.view().select(0, static_cast<int64_t>(block)).select(0, sample).select(0, row);
  }
  TensorView operand(int64_t m, int64_t width) const {  // [M, width], rows apart
    return {buffers.operand.view().raw(), buffers.operand.dtype(), {m, width}, {width + kOperandPadding, 1}};
  }
  // The part-th of tensors [M, width] W side by side in the chunk's wide memory.
  TensorView wide_part(int64_t part, int64_t m, int64_t width) const {
    const int64_t bytes = part * m * width * static_cast<int64_t>(dtype_size(dtype));
    return {buffers.wide.data<std::byte>() + bytes, dtype, {m, width}};
  }

  struct Affine {  // of a norm: neither, or weight and bias, or scale and shift; [d] F32
    TensorView weight, bias, scale, shift;
  };
  TensorView normalise(const char* span, const TensorView& x_rows, const Affine& affine) const;
  void product(const char* span, const TensorView& x, const LinearWeights& layer, kernels::PackedGemm call) const;
  void add_to_stream(const char* span, const TensorView& x, const LinearWeights& layer, const Chunk& chunk,
                     const TensorView& gate) const;
  void write_heads(const TensorView& from, const TensorView& weight, const Chunk* rotate,
                   std::span<const HeadSlot> slots) const;
  void write_slots(const TensorView& from, const TensorView& weight, const Chunk& chunk, bool rotate,
                   std::span<const HeadSlot> slots);

  std::shared_ptr<const TransformerWeights> weights;
  Stream& stream;
  const TransformerConfig& config;
  DType dtype;

  int64_t batch = 0;
  Shape latent;  // {F, H, W}
  attention::ContextAttention* attention = nullptr;
  IndexRange tokens;
  int64_t tokens_local = 0;
  kernels::RopeTable rope;
  std::shared_ptr<TextContext> context;
  std::optional<kernels::FlashAttention> cross, cross_last;  // of a chunk; of a sample's last where that is shorter
  TransformerBuffers buffers;
  std::vector<HeadSlot> chunk_slots;  // of the tensor that is written; kept, so that a step allocates nothing
};

void Transformer::State::plan_cross() {
  if (context == nullptr || batch == 0) return;
  ZT_CHECK(context->batch() == batch, "{} prompts for a batch of {}", context->batch(), batch);
  kernels::FlashProblem problem;
  problem.key_tokens = context->rows();
  problem.heads = config.num_attention_heads;
  problem.head_dim = config.attention_head_dim;
  problem.dtype = dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(config.attention_head_dim));
  problem.mask = context->key_lengths().empty() ? kernels::MaskKind::kNone : kernels::MaskKind::kKeyLengths;
  problem.query_tokens = chunk_rows(tokens_local);
  cross.emplace(problem);
  cross_last.reset();
  if (tokens_local == 0 || tokens_local % problem.query_tokens == 0) return;
  problem.query_tokens = tokens_local % problem.query_tokens;
  cross_last.emplace(problem);
}

// LN(x), then modulated or affine, as the operand of the next product, rounded to W.
TensorView Transformer::State::normalise(const char* span_name, const TensorView& x_rows, const Affine& affine) const {
  const trace::Span span(stream.lane(), span_name);
  const int64_t d = config.inner_dim();
  const TensorView out = operand(x_rows.extent(0), d);
  const auto row = [&](const TensorView& v) { return v ? v.reshape({1, 1, d}) : v; };
  kernels::layer_norm(stream, {.x = one_sample(x_rows),
                               .weight = affine.weight,
                               .bias = affine.bias,
                               .scale = row(affine.scale),
                               .shift = row(affine.shift),
                               .eps = static_cast<float>(config.eps),
                               .out = one_sample(out),
                               .round_to_bf16 = dtype == DType::kBF16,
                               .implementation = {}});
  return out;
}

void Transformer::State::product(const char* span_name, const TensorView& x, const LinearWeights& layer,
                                 kernels::PackedGemm call) const {
  const double terms = static_cast<double>(x.extent(0)) * static_cast<double>(layer.weight.n * layer.weight.k);
  const trace::Span span(stream.lane(), span_name, 2 * terms);
  call.x = x;
  call.w = layer.weight;
  call.bias = layer.bias;
  kernels::packed_gemm(stream, call);
}

// x += gate·layer(n) in the chunk's rows of the residual stream; gate empty: 1.
void Transformer::State::add_to_stream(const char* span_name, const TensorView& n, const LinearWeights& layer,
                                       const Chunk& chunk, const TensorView& gate) const {
  const TensorView x = rows(buffers.x, chunk);
  kernels::PackedGemm call;
  call.out = call.residual = x;
  call.gate = gate;
  product(span_name, n, layer, call);
}

// One sample's tokens [M, d] as heads; turned by the positions of `rotate` where that is given.
void Transformer::State::write_heads(const TensorView& from, const TensorView& weight, const Chunk* rotate,
                                     std::span<const HeadSlot> slots) const {
  const auto table = [&](const Tensor& whole) {
    return rotate != nullptr ? whole.view().slice(0, rotate->begin, rotate->end) : TensorView();
  };
  kernels::rms_norm_rope(stream, {.x = heads(one_sample(from)),
                                  .weight = weight,
                                  .cos = table(rope.cos),
                                  .sin = table(rope.sin),
                                  .eps = static_cast<float>(config.eps),
                                  .slots = slots,
                                  .implementation = {}});
}

// Into the chunk's rows of attention's input slots.
void Transformer::State::write_slots(const TensorView& from, const TensorView& weight, const Chunk& chunk, bool rotate,
                                     std::span<const HeadSlot> slots) {
  chunk_slots.clear();
  for (const HeadSlot& slot : slots) {
    const TensorView sample = slot.out.slice(0, chunk.sample, chunk.sample + 1);
    chunk_slots.push_back({slot.heads, sample.slice(1, chunk.begin, chunk.end)});
  }
  write_heads(from, weight, rotate ? &chunk : nullptr, chunk_slots);
}

void Transformer::State::embed_tokens(const TensorView& latents, const Probe& probe) {
  const trace::Span span(stream.lane(), "patch embedding");
  const LinearWeights& layer = weights->patch_embedding;
  for_each_chunk([&](const Chunk& chunk) {
    const IndexRange positions{tokens.begin + chunk.begin, tokens.begin + chunk.end};
    const TensorView cells = wide_part(0, chunk.rows(), layer.weight.k);
    patchify(stream, latents.slice(0, chunk.sample, chunk.sample + 1), config.patch_size, positions, one_sample(cells));
    kernels::PackedGemm call;
    call.out = rows(buffers.x, chunk);
    const TensorView n = as_operand(stream, cells, layer.weight, operand(chunk.rows(), layer.weight.k));
    product("patch embedding: product", n, layer, call);
  });
  observe(probe, "patch_embedding", buffers.x);
}

void Transformer::State::embed_time(std::span<const float> timesteps, const Probe& probe) {
  const trace::Span span(stream.lane(), "time embedding");
  const TransformerBuffers& b = buffers;
  timestep_sinusoid(timesteps, b.sinusoid);
  linear(stream, b.sinusoid, weights->time_in, b.time_hidden, kernels::Activation::kSilu);
  linear(stream, b.time_hidden, weights->time_out, b.time_float);
  kernels::convert(stream, b.time_float, b.temb);
  kernels::convert(stream, b.temb, b.time_float);
  observe(probe, "temb", b.temb);
  kernels::activate(stream, kernels::Activation::kSilu, b.temb, b.time_act);
  linear(stream, b.time_act, weights->time_proj, b.time_proj);
  observe(probe, "timestep_proj", b.time_proj);
  kernels::convert(stream, b.time_proj, b.proj_float.view().reshape(b.time_proj.shape()));
}

// What all blocks and the head are moved and scaled by: their tables plus the time embedding.
void Transformer::State::modulate() {
  const trace::Span span(stream.lane(), "modulation");
  const auto add = [&](const TensorView& table, const TensorView& added, const TensorView& out) {  // all [R, d] F32
    kernels::gated_add(stream, one_sample(table), one_sample(added), {}, one_sample(out));
  };
  for (int64_t b = 0; b < batch; ++b) {
    const TensorView time = buffers.proj_float.view().select(0, b);
    for (size_t i = 0; i < weights->blocks.size(); ++i)
      add(weights->blocks[i].modulation, time,
          buffers.modulation.view().select(0, static_cast<int64_t>(i)).select(0, b));
    const TensorView head = buffers.head_rows.view().select(0, b);
    for (int64_t row = 0; row < kHeadRows; ++row)  // both rows are moved by the same time embedding
      add(weights->head_modulation.slice(0, row, row + 1), buffers.time_float.view().slice(0, b, b + 1),
          head.slice(0, row, row + 1));
  }
}

// x += gate1·to_out(attention(n)), n = LN(x)·(1 + scale1) + shift1; the last step by the caller, chunk by chunk.
void Transformer::State::self_attention(const TransformerBlockWeights& block, size_t index) {
  const int64_t d = config.inner_dim();
  const attention::InputSlots& slots = attention->input_slots();
  for_each_chunk([&](const Chunk& chunk) {
    Affine affine;
    affine.scale = modulation(index, kScale1, chunk.sample);
    affine.shift = modulation(index, kShift1, chunk.sample);
    const TensorView n = normalise("norm", rows(buffers.x, chunk), affine);
    const TensorView qkv = wide_part(0, chunk.rows(), 3 * d);
    kernels::PackedGemm call;
    call.out = qkv;
    product("qkv", n, block.self_qkv, call);
    const trace::Span span(stream.lane(), "norm, rope");
    write_slots(qkv.slice(1, 0, d), block.self_norm_q, chunk, true, slots.q);
    write_slots(qkv.slice(1, d, 2 * d), block.self_norm_k, chunk, true, slots.k);
    write_slots(qkv.slice(1, 2 * d, 3 * d), {}, chunk, false, slots.v);
  });
  const trace::Span span(stream.lane(), "self-attention");
  attention->run({}, heads(buffers.o));  // collective: also where this rank has no tokens
}

// x += to_out(attention(n, text)), n = LN(x)·norm2
void Transformer::State::cross_attention(const TransformerBlockWeights& block, size_t index, const Chunk& chunk) {
  const int64_t m = chunk.rows(), d = config.inner_dim();
  const TensorView x = rows(buffers.x, chunk);
  Affine affine;
  affine.weight = block.cross_norm_weight;
  affine.bias = block.cross_norm_bias;
  const TensorView n = config.cross_attn_norm ? normalise("cross: norm", x, affine)
                                              : as_operand(stream, x, block.cross_q.weight, operand(m, d));
  const TensorView raw = wide_part(0, m, d), q = wide_part(1, m, d), o = wide_part(2, m, d);
  kernels::PackedGemm call;
  call.out = raw;
  product("cross: q", n, block.cross_q, call);
  {
    const trace::Span span(stream.lane(), "cross: norm of q");
    const HeadSlot slot{{0, config.num_attention_heads}, heads(one_sample(q))};
    write_heads(raw, block.cross_norm_q, nullptr, {&slot, 1});
  }
  kernels::KeyBlock keys;
  keys.k = context->keys(index).slice(0, chunk.sample, chunk.sample + 1);
  keys.v = context->values(index).slice(0, chunk.sample, chunk.sample + 1);
  if (!context->key_lengths().empty())
    keys.key_lengths = context->key_lengths().subspan(static_cast<size_t>(chunk.sample), 1);
  {
    const double flops = 4.0 * static_cast<double>(m) * static_cast<double>(context->rows() * d);
    const trace::Span span(stream.lane(), "cross: attention", flops);
    const kernels::FlashAttention& kernel = m == cross->problem().query_tokens ? *cross : *cross_last;
    kernel.attend(stream, heads(one_sample(q)), keys, heads(one_sample(o)));
  }
  add_to_stream("cross: out", as_operand(stream, o, block.cross_out.weight, operand(m, d)), block.cross_out, chunk, {});
}

// x += gate2·FFN(n), n = LN(x)·(1 + scale2) + shift2
void Transformer::State::feed_forward(const TransformerBlockWeights& block, size_t index, const Chunk& chunk) {
  Affine affine;
  affine.scale = modulation(index, kScale2, chunk.sample);
  affine.shift = modulation(index, kShift2, chunk.sample);
  const TensorView n = normalise("ffn: norm", rows(buffers.x, chunk), affine);
  const int64_t m = chunk.rows(), width = config.ffn_dim;
  const TensorView hidden(buffers.wide.view().raw(), n.dtype(), {m, width}, {width + kOperandPadding, 1});
  kernels::PackedGemm call;
  call.activation = kernels::Activation::kGeluTanh;
  call.out = hidden;
  call.round_to_bf16 = dtype == DType::kBF16 && hidden.dtype() == DType::kF32;
  product("ffn: in", n, block.ffn_in, call);
  add_to_stream("ffn: out", hidden, block.ffn_out, chunk, modulation(index, kGate2, chunk.sample));
}

void Transformer::State::project_out(const TensorView& velocity_tokens, const Probe& probe) {
  for_each_chunk([&](const Chunk& chunk) {
    const TensorView head = buffers.head_rows.view().select(0, chunk.sample);
    Affine affine;
    affine.scale = head.select(0, kHeadScale);
    affine.shift = head.select(0, kHeadShift);
    const TensorView n = normalise("head: norm", rows(buffers.x, chunk), affine);
    kernels::PackedGemm call;
    call.out = rows(velocity_tokens, chunk);
    product("head", n, weights->proj_out, call);
  });
  observe(probe, "proj_out", velocity_tokens);
}

Transformer::Transformer(std::shared_ptr<const TransformerWeights> weights, Stream& stream)
    : state_(std::make_unique<State>(std::move(weights), stream)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

const TransformerConfig& Transformer::config() const { return state_->config; }
DType Transformer::dtype() const { return state_->dtype; }
IndexRange Transformer::local_tokens() const { return state_->tokens; }

void Transformer::prepare(const Shape& latent, int64_t batch, attention::ContextAttention& attention) {
  State& s = *state_;
  const TokenGrid grid = token_grid(s.config, latent);
  const attention::Problem& problem = attention.problem();
  ZT_CHECK(problem.batch == batch && problem.tokens == grid.tokens() && problem.heads == s.config.num_attention_heads &&
               problem.head_dim == s.config.attention_head_dim && problem.dtype == s.dtype,
           "attention was planned for another model or size");
  s.batch = batch;
  s.latent = latent;
  s.attention = &attention;
  s.tokens = attention.tokens();
  s.tokens_local = s.tokens.size();
  s.rope = kernels::make_rope_table(s.config.attention_head_dim, grid.frames, grid.height, grid.width, s.tokens);
  s.buffers.book(s.config, s.tokens_local, batch, s.dtype);
  s.chunk_slots.reserve(static_cast<size_t>(s.config.num_attention_heads));
  {
    const Arena::Scope scope(s.stream.scratch());  // books it
    s.stream.scratch().allocate(
        static_cast<size_t>(transformer_scratch_bytes(s.config, s.tokens_local, s.dtype, s.stream.team().size())));
  }
  if (s.context != nullptr && s.context->batch() != batch) s.context.reset();
  s.plan_cross();
}

void Transformer::set_context(std::shared_ptr<TextContext> context, const Probe& probe) {
  context->join(state_->stream, probe);
  state_->context = std::move(context);
  state_->plan_cross();
}

void Transformer::set_context(const TensorView& text, std::span<const int64_t> key_lengths, const Probe& probe) {
  set_context(std::make_shared<TextContext>(state_->weights, text, key_lengths), probe);
}

void Transformer::forward(const TensorView& latents, std::span<const float> timesteps,
                          const TensorView& velocity_tokens, const Probe& probe) {
  State& s = *state_;
  ZT_CHECK(s.attention != nullptr && s.context != nullptr, "forward() before prepare() and set_context()");
  ZT_CHECK(latents.shape() == Shape({s.batch, s.config.in_channels, s.latent[0], s.latent[1], s.latent[2]}),
           "latents are {}", latents.shape().to_string());
  ZT_CHECK(static_cast<int64_t>(timesteps.size()) == s.batch);
  ZT_CHECK(velocity_tokens.shape() == Shape({s.batch, s.tokens_local, s.config.patch_output_dim()}) &&
           velocity_tokens.dtype() == s.dtype && velocity_tokens.contiguous());
  s.embed_tokens(latents, probe);
  s.embed_time(timesteps, probe);
  s.modulate();
  std::string name;
  for (size_t i = 0; i < s.weights->blocks.size(); ++i) {
    const TransformerBlockWeights& block = s.weights->blocks[i];
    s.self_attention(block, i);
    s.for_each_chunk([&](const Chunk& chunk) {
      const TensorView o = s.rows(s.buffers.o, chunk), n = s.operand(chunk.rows(), s.config.inner_dim());
      s.add_to_stream("out", as_operand(s.stream, o, block.self_out.weight, n), block.self_out, chunk,
                      s.modulation(i, kGate1, chunk.sample));
      s.cross_attention(block, i, chunk);
      s.feed_forward(block, i, chunk);
    });
    if (probe) observe(probe, name.assign("block.").append(std::to_string(i)), s.buffers.x);
  }
  s.project_out(velocity_tokens, probe);
}

}  // namespace zoetrope::wan
