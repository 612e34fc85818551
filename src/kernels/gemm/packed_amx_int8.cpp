// int8 matrix multiplication with AMX. Compiled for it: nothing here may run before the CPU was asked.
#include "kernels/gemm/int8_amx_tile.h"

namespace zoetrope::kernels {

const Int8Kernel& int8_kernel_amx() {
  static const Int8Kernel kernel = make_amx_kernel();
  return kernel;
}

}  // namespace zoetrope::kernels
