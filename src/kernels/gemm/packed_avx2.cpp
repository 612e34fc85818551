// packed_gemm() on AVX2 with FMA.
#include "kernels/cpu_features.h"
#include "kernels/gemm/packed_tile.h"

namespace zoetrope::kernels {
namespace {

constexpr PackedKernel kernel_of(int64_t depth, int64_t rows) {
  return {.columns = kPanelColumns,
          .depth = depth,
          .rows = rows,
          .fewest_rows = 48,
          .panels = 16,
          .panel = multiply_panel,
          .finish = finish_rows};
}

// A step of a panel, widened to float32, is 16 KiB and stays in the L1 cache while it is multiplied with all rows.
// Their terms of a step and their sums are 288 KiB and stay in the L2 cache while the panels of an item are read. With
// one panel an item, x came from memory for every 16 columns.
constexpr PackedKernel kSmall = kernel_of(256, 144);
// 48 KiB, from the L2 cache, which holds 1.2 MiB of rows. On Emerald Rapids a forward of 1.3B at 1560 tokens, bf16, two
// threads, takes 0.92 of what it does with the other (least and median of two).
constexpr PackedKernel kLarge = kernel_of(768, 288);

}  // namespace

const PackedKernel& packed_kernel_avx2() { return cpu_features().large_l2 ? kLarge : kSmall; }

}  // namespace zoetrope::kernels
