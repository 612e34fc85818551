// packed_gemm() on AVX-512. Compiled for it: nothing here may run before the CPU was asked.
#include "kernels/gemm/packed_tile.h"

namespace zoetrope::kernels {

// A step of a panel, widened to float32, is 512 KiB and stays in the L2 cache while it is multiplied with all rows; so
// do the sums.
const PackedKernel& packed_kernel_avx512() {
  static constexpr PackedKernel kKernel{.columns = kPanelColumns,
                                        .depth = 2048,
                                        .rows = 2048,
                                        .fewest_rows = 192,
                                        .panels = 1,
                                        .panel = multiply_panel,
                                        .finish = finish_rows};
  return kKernel;
}

}  // namespace zoetrope::kernels
