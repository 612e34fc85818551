#include "models/wan/clip/memory.h"

#include <algorithm>

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"
#include "models/wan/part_weights.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kFloat = 4;

// Terms of a patch's product: its pixels.
int64_t patch_terms(const ClipVisionConfig& config) {
  return config.num_channels * config.patch_size * config.patch_size;
}

}  // namespace

size_t clip_workspace_bytes(const ClipVisionConfig& config, int64_t pictures, DType dtype, int threads) {
  const auto element = static_cast<int64_t>(dtype_size(dtype));
  const auto booked = [](int64_t bytes) { return static_cast<size_t>(round_up(bytes, 64)); };  // as an Arena does
  const int64_t rows = pictures * config.tokens(), d = config.hidden_size, hidden = config.intermediate_size;
  const auto product = [&](int64_t terms) { return kernels::thin_gemm_scratch_bytes(rows, terms, false, threads); };
  // x, n, q, k, v, o; hidden; sums: see EncoderBlock. And the patches, before there are layers.
  const size_t values = 6 * booked(rows * d * element) + booked(rows * hidden * element) + booked(rows * d * kFloat) +
                        booked(pictures * config.patches() * patch_terms(config) * element);
  // Vectors of one product or norm, or of the embeddings, as float32.
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

}  // namespace zoetrope::wan
