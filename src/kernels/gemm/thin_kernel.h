// What each instruction set implements for thin_gemm(): packing a panel of weights, and the multiplication of a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/prefetch.h"

namespace zoetrope::kernels {

// How the bytes of a weight become its float32 value.
enum class ThinWeight : uint8_t { kF32, kF32RoundedToBF16, kBF16 };
constexpr int64_t thin_weight_bytes(ThinWeight weight) { return weight == ThinWeight::kBF16 ? 2 : 4; }

// Terms summed in registers before they are added to the sums in memory. 128 of 32 columns are 16 KiB, which stay in
// the L1 cache next to the tile of x and the weights passing through; 256 lost 4 % at 8 and 20 rows, 512 lost 15 to 30
// %.
inline constexpr int64_t kThinDepth = 128;

struct ThinPack {
  const std::byte* w = nullptr;  // first column's first term
  int64_t row_bytes = 0;         // from column to column
  int64_t columns = 0;           // that exist; the rest of the panel is zero
  int64_t depth = 0;             // terms, ≤ kThinDepth
  ThinWeight weight = ThinWeight::kF32;
  float* panel = nullptr;  // [depth rounded up to 8][columns of the kernel], 64-byte aligned
};

struct ThinTile {
  const float* x = nullptr;  // [depth][rows]
  const float* panel = nullptr;
  int64_t rows = 0, depth = 0;
  float* sums = nullptr;    // [rows][columns of the kernel], 64-byte aligned
  bool accumulate = false;  // onto sums
  // Advanced for every eight terms. Without it, 8 rows are 27 % slower and 20 rows 16 %; prefetching every other line
  // only, which also loads its neighbour, loses 6 to 14 %.
  Prefetch* next_weights = nullptr;
};

struct ThinKernel {
  int64_t columns;   // of a panel
  int64_t max_rows;  // of a tile
  void (*pack)(const ThinPack& task);
  void (*multiply)(const ThinTile& task);
};
inline constexpr int64_t kThinMaxColumns = 32;

extern const ThinKernel kThinAvx2, kThinAvx512;

}  // namespace zoetrope::kernels
