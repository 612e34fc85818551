// The direct convolution on AVX-512, products in float32; bf16 inputs are widened first.
#include "kernels/conv/direct_finish.h"
#include "kernels/conv/direct_tile.h"
#include "kernels/conv/winograd_tile.h"

namespace zoetrope::kernels {

const DirectKernels& direct_avx512() {
  static constexpr DirectKernels kKernels = with_finish(with_winograd<FloatProducts>(direct_kernels<FloatProducts>()));
  return kKernels;
}

}  // namespace zoetrope::kernels
