// The check that all doors of the VAE share.
#pragma once

#include "zoetrope/tensor.h"

#include "base/error.h"

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

}  // namespace zoetrope::wan
