// How a clip is cut while it passes through the VAE, and the checks that both directions share.
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "models/wan/vae/vae_blocks.h"

namespace zoetrope::wan {

// Two frames at once share the copy of the two kept ones, but every convolution then holds four frames instead of
// three. Above this size of a frame memory matters more.
constexpr int64_t kLargeFrameBytes = int64_t{64} << 20;

inline int64_t frames_at_once(FrameSize size, int64_t channels) {
  const int64_t bytes = size.height * size.width * channels * static_cast<int64_t>(sizeof(float));
  return bytes > kLargeFrameBytes ? 1 : 2;
}

// [1, a, b, c, d] or [a, b, c, d], F32, as the latter.
inline TensorView without_batch(const TensorView& x, const char* what, const char* axes) {
  if (x.dtype() != DType::kF32) fail("{} must be F32, not {}", what, dtype_name(x.dtype()));
  if (x.rank() == 4) return x;
  if (x.rank() != 5 || x.extent(0) != 1) {
    fail("{} must be [{}] or [1, {}], not {}", what, axes, axes, x.shape().to_string());
  }
  return x.select(0, 0);
}

}  // namespace zoetrope::wan
