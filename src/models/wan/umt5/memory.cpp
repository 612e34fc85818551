#include "models/wan/umt5/memory.h"

#include <algorithm>

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"
#include "models/wan/part_weights.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kFloat = 4;

// Of the part that is largest.
struct Widths {
  int64_t heads, attention, feed_forward;
  Widths(const TextEncoderConfig& config, int parts)
      : heads(ceil_div(config.num_heads, parts)),
        attention(heads * config.d_kv),
        feed_forward(ceil_div(config.d_ff, parts)) {}
};

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
  const auto booked = [](int64_t bytes) { return static_cast<size_t>(round_up(bytes, 64)); };  // as an Arena does
  // x, n; q, k, v, o; hidden; sums; distances: see EncoderBlock and TextEncoder::State::Buffers.
  const size_t values = 2 * booked(use.rows * config.d_model * element) +
                        4 * booked(use.rows * part.attention * element) +
                        booked(use.rows * part.feed_forward * element) + booked(use.rows * config.d_model * kFloat) +
                        booked(part.heads * (2 * use.longest - 1) * kFloat);
  const size_t small =
      booked(std::max(config.d_model, config.relative_attention_num_buckets * config.num_heads) * element);
  return values + small + text_encoder_scratch_bytes(config, use);
}

size_t text_encoder_mapped_bytes(const TextEncoderConfig& config, DType stored, int parts) {
  const Widths part(config, parts);
  const int64_t half = config.d_model * std::max(4 * part.attention, 3 * part.feed_forward);
  return static_cast<size_t>(half) * dtype_size(stored);
}

size_t text_encoder_buffer_bytes(const TextEncoderConfig& config, DType dtype, int parts) {
  const Widths part(config, parts);
  const int64_t most = config.d_model * std::max(3 * part.attention, 2 * part.feed_forward);
  return static_cast<size_t>(most) * dtype_size(dtype);
}

}  // namespace zoetrope::wan
