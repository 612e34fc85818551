// int8 matrix multiplication with AVX512-VNNI. Compiled for it: nothing here may run before the CPU was asked.
#include "kernels/gemm/int8_tile.h"

namespace zoetrope::kernels {

const Int8Kernel& int8_kernel_vnni512() { return kInt8Kernel<DotProducts>; }

}  // namespace zoetrope::kernels
