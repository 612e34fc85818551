// packed_gemm() on AVX2 with FMA.
#include "kernels/gemm/packed_tile.h"

namespace zoetrope::kernels {

// A step of a panel, widened to float32, is 16 KiB and stays in the L1 cache while it is multiplied with all rows.
// Their terms of a step and their sums are 288 KiB and stay in the L2 cache while the panels of an item are read. With
// one panel an item, x came from memory for every 16 columns.
const PackedKernel& packed_kernel_avx2() {
  static constexpr PackedKernel kKernel{.columns = kPanelColumns,
                                        .depth = 256,
                                        .rows = 144,
                                        .fewest_rows = 48,
                                        .panels = 16,
                                        .panel = multiply_panel,
                                        .finish = finish_rows};
  return kKernel;
}

}  // namespace zoetrope::kernels
