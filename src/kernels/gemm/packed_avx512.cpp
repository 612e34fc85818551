// packed_gemm() on AVX-512. Compiled for it: nothing here may run before the CPU was asked.
#include "kernels/gemm/packed_tile.h"

namespace zoetrope::kernels {

const PackedKernel& packed_kernel_avx512() { return kPackedKernel; }

}  // namespace zoetrope::kernels
