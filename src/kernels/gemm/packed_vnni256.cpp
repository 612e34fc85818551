// int8 matrix multiplication with AVX-VNNI, 256 bits wide. Compiled for it: nothing here may run before the CPU was
// asked.
#include "kernels/gemm/int8_tile.h"

namespace zoetrope::kernels {

const Int8Kernel& int8_kernel_vnni256() { return kInt8Kernel<DotProducts>; }

}  // namespace zoetrope::kernels
