// packed_gemm() on AVX2 with FMA.
#include "kernels/gemm/packed_tile.h"

namespace zoetrope::kernels {

const PackedKernel& packed_kernel_avx2() { return kPackedKernel; }

}  // namespace zoetrope::kernels
