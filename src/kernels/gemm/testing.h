// What the tests of matrix multiplication share.
#pragma once

#include <cmath>

#include "kernels/gemm/packed_int8.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope::kernels::test {

// Activations as textbooks write them, in double. Not what kernels or their references compute with (activation.h),
// which has other forms that keep more digits.
inline double textbook(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x * 0.7071067811865476));
    case Activation::kNone:
      break;
  }
  return x;
}

// That for AMX, with tiles in memory; it needs AVX-512.
const Int8Kernel& int8_kernel_emulated_amx();

}  // namespace zoetrope::kernels::test
