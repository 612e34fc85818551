#include "models/wan/transformer/transformer.h"

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

// All views are of this rank's S tokens and M = B·S rows; W stands for the model dtype.
struct Transformer::State {
  State(std::shared_ptr<const TransformerWeights> shared, Stream& rank_stream)
      : weights(std::move(shared)), stream(rank_stream), config(weights->config), dtype(weights->dtype) {}

  void book();
  void plan_cross();
  void embed_tokens(const TensorView& latents, const Probe& probe);
  void embed_time(std::span<const float> timesteps, const Probe& probe);
  void modulate(const TensorView& table, const TensorView& rows, const TensorView& out);
  void self_attention(const TransformerBlockWeights& block);
  void cross_attention(const TransformerBlockWeights& block, size_t index);
  void feed_forward(const TransformerBlockWeights& block);
  void project_out(const TensorView& velocity_tokens, const Probe& probe);

  TensorView rows(const TensorView& value) const { return value.reshape({batch * tokens_local, value.extent(-1)}); }
  TensorView heads(const TensorView& value) const {
    return value.split_axis(2, config.num_attention_heads, config.attention_head_dim);
  }
  // [B, S, width] at `offset` elements a token into the block's scratch.
  TensorView wide_part(int64_t offset, int64_t width) const;
  void normalise(const TensorView& scale, const TensorView& shift, const TensorView& weight, const TensorView& bias);
  void write_heads(const TensorView& x, const TensorView& weight, bool rotate, std::span<const HeadSlot> slots);

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
  std::optional<kernels::FlashAttention> cross;

  Tensor x;     // [B, S, d] W: the residual stream
  Tensor n;     // [B, S, d] W: what a sub-layer reads, then what it gives back
  Tensor wide;  // [M·max(3d, ffn_dim, patch)] W: q, k, v; or the feed-forward's hidden rows

  Tensor sinusoid;     // [B, freq_dim] F32
  Tensor time_hidden;  // [B, d] F32
  Tensor time_float;   // [B, d] F32: temb, at first as computed, then as rounded to W
  Tensor temb;         // [B, d] W
  Tensor time_act;     // [B, d] W
  Tensor time_proj;    // [B, 6d] W
  Tensor proj_float;   // [B, 6, d] F32: time_proj
  Tensor modulation;   // [B, 6, d] F32 of the current block
  Tensor head_rows;    // [B, 2, d] F32
};

void Transformer::State::book() {
  const int64_t d = config.inner_dim(), rows_local = batch * tokens_local;
  const int64_t widest = std::max({3 * d, config.ffn_dim, config.patch_input_dim()});
  x = Tensor::uninitialized(dtype, {batch, tokens_local, d});
  n = Tensor::uninitialized(dtype, {batch, tokens_local, d});
  wide = Tensor::uninitialized(dtype, {rows_local * widest});
  sinusoid = Tensor::uninitialized(DType::kF32, {batch, config.freq_dim});
  time_hidden = Tensor::uninitialized(DType::kF32, {batch, d});
  time_float = Tensor::uninitialized(DType::kF32, {batch, d});
  temb = Tensor::uninitialized(dtype, {batch, d});
  time_act = Tensor::uninitialized(dtype, {batch, d});
  time_proj = Tensor::uninitialized(dtype, {batch, kModulationRows * d});
  proj_float = Tensor::uninitialized(DType::kF32, {batch, kModulationRows, d});
  modulation = Tensor::uninitialized(DType::kF32, {batch, kModulationRows, d});
  head_rows = Tensor::uninitialized(DType::kF32, {batch, kHeadRows, d});
}

void Transformer::State::plan_cross() {
  if (context == nullptr || batch == 0) return;
  ZT_CHECK(context->batch() == batch, "{} prompts for a batch of {}", context->batch(), batch);
  kernels::FlashProblem problem;
  problem.batch = batch;
  problem.query_tokens = tokens_local;
  problem.key_tokens = context->rows();
  problem.heads = config.num_attention_heads;
  problem.head_dim = config.attention_head_dim;
  problem.dtype = dtype;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(config.attention_head_dim));
  problem.mask = context->key_lengths().empty() ? kernels::MaskKind::kNone : kernels::MaskKind::kKeyLengths;
  cross.emplace(problem);
}

TensorView Transformer::State::wide_part(int64_t offset, int64_t width) const {
  const int64_t begin = offset * batch * tokens_local;
  return wide.view().slice(0, begin, begin + width * batch * tokens_local).reshape({batch, tokens_local, width});
}

// n = LN(x), then modulated or affine; empty views mean neither.
void Transformer::State::normalise(const TensorView& scale, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias) {
  if (tokens_local == 0) return;
  kernels::layer_norm(stream, {.x = x,
                               .weight = weight,
                               .bias = bias,
                               .scale = scale,
                               .shift = shift,
                               .eps = static_cast<float>(config.eps),
                               .out = n,
                               .implementation = {}});
}

void Transformer::State::write_heads(const TensorView& from, const TensorView& weight, bool rotate,
                                     std::span<const HeadSlot> slots) {
  if (tokens_local == 0) return;
  kernels::rms_norm_rope(stream, {.x = heads(from),
                                  .weight = weight,
                                  .cos = rotate ? rope.cos.view() : TensorView(),
                                  .sin = rotate ? rope.sin.view() : TensorView(),
                                  .eps = static_cast<float>(config.eps),
                                  .slots = slots,
                                  .implementation = {}});
}

void Transformer::State::embed_tokens(const TensorView& latents, const Probe& probe) {
  const TensorView cells = wide_part(0, config.patch_input_dim());
  patchify(stream, latents, config.patch_size, tokens, cells);
  linear(stream, rows(cells), weights->patch_embedding, rows(x));
  observe(probe, "patch_embedding", x);
}

void Transformer::State::embed_time(std::span<const float> timesteps, const Probe& probe) {
  timestep_sinusoid(timesteps, sinusoid);
  linear(stream, sinusoid, weights->time_in, time_hidden, kernels::Activation::kSilu);
  linear(stream, time_hidden, weights->time_out, time_float);
  kernels::convert(stream, time_float, temb);
  kernels::convert(stream, temb, time_float);
  observe(probe, "temb", temb);
  kernels::activate(stream, kernels::Activation::kSilu, temb, time_act);
  linear(stream, time_act, weights->time_proj, time_proj);
  observe(probe, "timestep_proj", time_proj);
  kernels::convert(stream, time_proj, proj_float.view().reshape(time_proj.shape()));
}

// out[b] = table + rows[b], all [R, d] F32.
void Transformer::State::modulate(const TensorView& table, const TensorView& added, const TensorView& out) {
  const TensorView one = table.reshape({1, table.extent(0), table.extent(1)});
  for (int64_t b = 0; b < batch; ++b) {
    kernels::gated_add(stream, one, added.slice(0, b, b + 1), {}, out.slice(0, b, b + 1));
  }
}

// x += gate1·to_out(attention(n)), n = LN(x)·(1 + scale1) + shift1
void Transformer::State::self_attention(const TransformerBlockWeights& block) {
  const trace::Span span(stream.lane(), "self-attention");
  const TensorView m = modulation;
  const int64_t d = config.inner_dim();
  normalise(m.slice(1, kScale1, kScale1 + 1), m.slice(1, kShift1, kShift1 + 1), {}, {});
  const TensorView qkv = wide_part(0, 3 * d);
  linear(stream, rows(n), block.self_qkv, rows(qkv));
  const attention::InputSlots& slots = attention->input_slots();
  write_heads(qkv.slice(2, 0, d), block.self_norm_q, true, slots.q);
  write_heads(qkv.slice(2, d, 2 * d), block.self_norm_k, true, slots.k);
  write_heads(qkv.slice(2, 2 * d, 3 * d), {}, false, slots.v);
  const TensorView o = wide_part(0, d);  // over q, k, v, which the slots hold now
  attention->run({}, heads(o));          // collective: also where this rank has no tokens
  if (tokens_local == 0) return;
  linear(stream, rows(o), block.self_out, rows(n));
  kernels::gated_add(stream, x, n, m.slice(1, kGate1, kGate1 + 1), x);
}

// x += to_out(attention(n, text)), n = LN(x)·norm2
void Transformer::State::cross_attention(const TransformerBlockWeights& block, size_t index) {
  if (tokens_local == 0) return;
  const trace::Span span(stream.lane(), "cross-attention");
  const int64_t d = config.inner_dim();
  if (config.cross_attn_norm) normalise({}, {}, block.cross_norm_weight, block.cross_norm_bias);
  const TensorView raw = wide_part(0, d), q = wide_part(d, d), o = wide_part(2 * d, d);
  linear(stream, rows(config.cross_attn_norm ? n : x), block.cross_q, rows(raw));
  const HeadSlot slot{{0, config.num_attention_heads}, heads(q)};
  write_heads(raw, block.cross_norm_q, false, {&slot, 1});
  kernels::KeyBlock text;
  text.k = context->keys(index);
  text.v = context->values(index);
  text.key_lengths = context->key_lengths();
  cross->attend(stream, heads(q), text, heads(o));
  linear(stream, rows(o), block.cross_out, rows(n));
  kernels::gated_add(stream, x, n, {}, x);
}

// x += gate2·FFN(n), n = LN(x)·(1 + scale2) + shift2
void Transformer::State::feed_forward(const TransformerBlockWeights& block) {
  if (tokens_local == 0) return;
  const trace::Span span(stream.lane(), "feed-forward");
  const TensorView m = modulation;
  normalise(m.slice(1, kScale2, kScale2 + 1), m.slice(1, kShift2, kShift2 + 1), {}, {});
  const TensorView hidden = wide_part(0, config.ffn_dim);
  linear(stream, rows(n), block.ffn_in, rows(hidden), kernels::Activation::kGeluTanh);
  linear(stream, rows(hidden), block.ffn_out, rows(n));
  kernels::gated_add(stream, x, n, m.slice(1, kGate2, kGate2 + 1), x);
}

void Transformer::State::project_out(const TensorView& velocity_tokens, const Probe& probe) {
  const TensorView m = head_rows;
  for (int64_t row = 0; row < kHeadRows; ++row) {  // both rows are moved by the same time embedding
    modulate(weights->head_modulation.slice(0, row, row + 1), time_float.view().reshape({batch, 1, config.inner_dim()}),
             m.slice(1, row, row + 1));
  }
  normalise(m.slice(1, kHeadScale, kHeadScale + 1), m.slice(1, kHeadShift, kHeadShift + 1), {}, {});
  linear(stream, rows(n), weights->proj_out, rows(velocity_tokens));
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
  s.book();
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
  std::string name;
  for (size_t i = 0; i < s.weights->blocks.size(); ++i) {
    const TransformerBlockWeights& block = s.weights->blocks[i];
    s.modulate(block.modulation, s.proj_float, s.modulation);
    s.self_attention(block);
    s.cross_attention(block, i);
    s.feed_forward(block);
    if (probe) observe(probe, name.assign("block.").append(std::to_string(i)), s.x);
  }
  s.project_out(velocity_tokens, probe);
}

}  // namespace zoetrope::wan
