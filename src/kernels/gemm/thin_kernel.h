// What an instruction set contributes to thin_gemm(): bringing a piece of the weights into the order that is
// multiplied, and the product of a tile. Shapes of both, and what is asked of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/implementation.h"

namespace zoetrope::kernels {

// How the bytes of a weight become its float32 value.
enum class ThinWeight : uint8_t { kF32, kF32RoundedToBF16, kBF16 };
constexpr int64_t thin_weight_bytes(ThinWeight weight) { return weight == ThinWeight::kBF16 ? 2 : 4; }

// Terms summed in registers before they join the sums in memory. 128 of 32 columns are 16 KiB, which stay in the L1
// cache beside the tile of x and the weights passing through; 256 lost 4 % at 8 and 20 rows, 512 lost 15 to 30 %.
inline constexpr int64_t kThinDepth = 128;

// Weights asked for ahead of their use, line by line while something is multiplied: in one go they would wait for one
// another. Without it, 8 rows are 27 % slower and 20 rows 16 %; asking for every other line only, which brings its
// neighbour, loses 6 to 14 %. Prefetches of pages that are not mapped yet do nothing; the first real read of those
// waits.
struct ThinAhead {
  const std::byte* row = nullptr;
  int64_t row_bytes = 0;
  int64_t line = 0, lines = 0;  // of a row, 64 bytes each
  int64_t left = 0;             // lines in all
  int64_t each = 0;             // for every eight terms
};

struct ThinPack {
  const std::byte* w = nullptr;  // first column's first term
  int64_t row_bytes = 0;         // from column to column
  int64_t columns = 0;           // that exist; the rest of the panel is zero
  int64_t depth = 0;             // terms, ≤ kThinDepth
  ThinWeight weight = ThinWeight::kF32;
  float* panel = nullptr;  // [depth rounded up to 8][columns of the kernel], 64-byte aligned
};

enum class ThinSums : uint8_t { kBegin, kGoOn };
struct ThinTile {
  const float* x = nullptr;  // [depth][rows]
  const float* panel = nullptr;
  int64_t rows = 0, depth = 0;
  float* sums = nullptr;  // [rows][columns of the kernel], 64-byte aligned
  ThinSums mode = ThinSums::kBegin;
  ThinAhead* ahead = nullptr;
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
