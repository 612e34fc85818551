#include "models/encoders/cost.h"

#include <algorithm>

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"

namespace zoetrope::encoders {
namespace {

constexpr int64_t kFloat = 4;

// Scratch of an attention with all its keys in one call, at most: keys and values are packed, for several heads (of all
// samples) at once where keys are few, up to all heads, in panels of keys; and every thread has a tile.
size_t packing_scratch_bytes(int64_t heads, int64_t keys, int64_t head_dim, int threads) {
  // The largest tile of tile_size.h: 256 rows and twice 512 keys of weights on AMX are 0.56 MB, their sums,
  // queries and results at a head size of 128 another 0.23 MB.
  constexpr int64_t kPanel = 64, kTile = int64_t{1} << 20;
  const int64_t packed = round_up(keys, kPanel) + kPanel;
  return static_cast<size_t>(heads * 2 * packed * head_dim * kFloat + threads * kTile);
}

size_t booked(int64_t bytes) { return static_cast<size_t>(round_up(bytes, 64)); }  // as an Arena does

double real(int64_t value) { return static_cast<double>(value); }

// Of the largest part.
struct Widths {
  int64_t heads, attention, feed_forward;
  Widths(const TextEncoderConfig& config, int parts)
      : heads(ceil_div(config.num_heads, parts)),
        attention(heads * config.d_kv),
        feed_forward(ceil_div(config.d_ff, parts)) {}
};

// Inner dimension of the patch embedding: the pixels of a patch.
int64_t patch_terms(const ClipVisionConfig& config) {
  return config.num_channels * config.patch_size * config.patch_size;
}

}  // namespace

size_t text_encoder_scratch_bytes(const TextEncoderConfig& config, const TextEncoderUse& use) {
  const Widths part(config, use.parts);
  const size_t products = std::max({kernels::thin_gemm_scratch_bytes(use.rows, config.d_model, true, use.threads),
                                    kernels::thin_gemm_scratch_bytes(use.rows, part.attention, false, use.threads),
                                    kernels::thin_gemm_scratch_bytes(use.rows, part.feed_forward, false, use.threads)});
  return std::max(products, packing_scratch_bytes(part.heads, use.longest, config.d_kv, use.threads));
}

size_t text_encoder_workspace_bytes(const TextEncoderConfig& config, const TextEncoderUse& use) {
  const Widths part(config, use.parts);
  const auto element = static_cast<int64_t>(dtype_size(use.dtype));
  // x, n; q, k, v, o; hidden; sums; distances: see EncoderBlock and TextEncoder::State::Buffers.
  const size_t values = 2 * booked(use.rows * config.d_model * element) +
                        4 * booked(use.rows * part.attention * element) +
                        booked(use.rows * part.feed_forward * element) + booked(use.rows * config.d_model * kFloat) +
                        booked(part.heads * (2 * use.longest - 1) * kFloat);
  const size_t small =
      booked(std::max(config.d_model, config.relative_attention_num_buckets * config.num_heads) * element);
  return values + small + text_encoder_scratch_bytes(config, use);
}

int64_t text_encoder_mapped_weights(const TextEncoderConfig& config, int parts, int here) {
  const Widths part(config, parts);
  const auto of_columns = [&](int64_t whole) { return ceil_div(whole, int64_t{here}); };
  return config.d_model * std::max(3 * part.attention + of_columns(config.attention_dim()),
                                   2 * part.feed_forward + of_columns(config.d_ff));
}

size_t text_encoder_buffer_bytes(const TextEncoderConfig& config, DType dtype, int parts) {
  const Widths part(config, parts);
  const int64_t most = config.d_model * std::max(3 * part.attention, 2 * part.feed_forward);
  return static_cast<size_t>(most) * dtype_size(dtype);
}

double text_encoder_flop(const TextEncoderConfig& config, int64_t ids) {
  const double n = real(ids), d = real(config.d_model), a = real(config.attention_dim());
  return real(config.num_layers) * (2 * n * (4 * d * a + 3 * d * real(config.d_ff)) + 4 * n * n * a);
}

size_t clip_workspace_bytes(const ClipVisionConfig& config, int64_t pictures, DType dtype, int threads) {
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  const int64_t rows = pictures * config.tokens(), d = config.hidden_size, hidden = config.intermediate_size;
  const auto product = [&](int64_t terms) { return kernels::thin_gemm_scratch_bytes(rows, terms, false, threads); };
  // x, n, q, k, v, o; hidden; sums: see EncoderBlock. And the patches, before the first layer.
  const size_t values = 6 * booked(rows * d * element) + booked(rows * hidden * element) + booked(rows * d * kFloat) +
                        booked(pictures * config.patches() * patch_terms(config) * element);
  // Vectors of one matrix multiplication or norm, or of the embeddings, as float32.
  const size_t vectors = booked((config.tokens() + 1) * d * kFloat) + 3 * booked(std::max(d, hidden) * kFloat);
  const size_t ops = std::max(
      {product(d), product(hidden), product(patch_terms(config)),
       packing_scratch_bytes(pictures * config.num_attention_heads, config.tokens(), config.head_dim(), threads)});
  return values + vectors + ops;
}

size_t clip_mapped_bytes(const ClipVisionConfig& config, DType stored) {
  const int64_t d = config.hidden_size;
  return static_cast<size_t>(d * std::max(4 * d, 2 * config.intermediate_size)) * dtype_size(stored);
}

size_t clip_buffer_bytes(const ClipVisionConfig& config, DType dtype) {
  const int64_t d = config.hidden_size;
  return static_cast<size_t>(d * std::max({3 * d, config.intermediate_size, patch_terms(config)})) * dtype_size(dtype);
}

double image_encoder_flop(const ClipVisionConfig& config) {
  const double rows = real(config.tokens()), d = real(config.hidden_size);
  const double products = 2 * rows * (4 * d * d + 2 * d * real(config.intermediate_size));
  return real(config.layers_used()) * (products + 4 * rows * rows * d);
}

}  // namespace zoetrope::encoders
