// int8 matrix multiplication with AVX512-VNNI. Compiled for it: nothing here may run before the CPU was asked.
#include "kernels/gemm/int8_tile.h"

namespace zoetrope::kernels {

const Int8Kernel& int8_kernel_vnni512() {
  static constexpr Int8Kernel kKernel{.columns = kPanelColumns,
                                      .rows = kTileRows,
                                      .call_rows = kTileRows,
                                      .term_bytes = sizeof(DotProducts::Term),
                                      .quantise = quantise_group<DotProducts::Term>,
                                      .multiply = multiply_rows<DotProducts>,
                                      .finish = finish_rows};
  return kKernel;
}

}  // namespace zoetrope::kernels
