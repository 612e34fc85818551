// The direct convolution on AVX2, which every build requires. 4 pixels × 3 vectors: 12 accumulators of 16 registers.
#include "kernels/conv/direct_finish.h"
#include "kernels/conv/direct_tile.h"
#include "kernels/conv/winograd_tile.h"

namespace zoetrope::kernels {

const DirectKernels& direct_avx2() {
  static constexpr DirectKernels kKernels = with_finish(with_winograd<FloatProducts>(direct_kernels<FloatProducts>()));
  return kKernels;
}

}  // namespace zoetrope::kernels
