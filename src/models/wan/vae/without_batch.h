// The checks that all entry points of the VAE share.
#pragma once

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "kernels/conv/halo.h"

namespace zoetrope::wan {

// [1, a, b, c, d] or [a, b, c, d], F32, as the latter.
inline TensorView without_batch(const TensorView& x, const char* what, const char* axes) {
  if (x.dtype() != DType::kF32) fail("{} must be F32, not {}", what, dtype_name(x.dtype()));
  if (x.rank() == 4) return x;
  if (x.rank() != 5 || x.extent(0) != 1) {
    fail("{} must be [{}] or [1, {}], not {}", what, axes, axes, x.shape().to_string());
  }
  return x.select(0, 0);
}

// The latent rows that are this part's, of `height`.
inline IndexRange rows_of_part(const kernels::RowSplit& split, int64_t height) {
  if (split.exchange == nullptr) return {0, height};
  if (split.rows.empty() || split.rows.begin < 0 || split.rows.end > height) {
    fail("part {} of {} of the VAE has rows [{}, {}) of {}; each needs at least one", split.exchange->part(),
         split.exchange->parts(), split.rows.begin, split.rows.end, height);
  }
  return split.rows;
}

}  // namespace zoetrope::wan
