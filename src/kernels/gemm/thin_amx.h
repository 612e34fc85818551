// thin_gemm() on AMX, for BF16 rows and BF16 weights. The sizes are needed on every CPU, so this header is compiled for
// every CPU; thin_amx.cpp has only what runs on AMX.
#pragma once

#include <algorithm>

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

// The tiling: of the rows of x, and of the columns and terms of a thread.
struct ThinAmxSizes {
  static constexpr int64_t kTileRows = 16, kTileBytes = 1024, kTileFloats = 256;
  static constexpr int64_t kStep = 32;             // terms of a tile of weights
  static constexpr int64_t kPair = 2 * kTileRows;  // columns, and rows, that are multiplied together
  // Rows that are multiplied in one pass over the weights, so that scratch stays bounded.
  static constexpr int64_t kPassRows = 1024;

  // What a thread sums at a time: columns, and terms before sums are stored and the next columns are multiplied. Few
  // rows wait for memory and are faster with weights prefetched shortly before use: 2048 terms lost 10 % at 32 rows, 64
  // columns 3 to 5 %. With more rows, 512 terms lost 15 % at 64 and 10 % at 512 rows; 1024 lost half of that; 128 and
  // 256 columns differed by less than the measurement noise.
  struct Block {
    int64_t columns, terms;
  };
  static constexpr int64_t kFewRows = 48;
  static constexpr Block kFewRowsBlock{32, 512}, kManyRowsBlock{64, 2048};

  int64_t tiles, steps;  // of rows, and of terms
  Block block;
  ThinAmxSizes(int64_t rows, int64_t k)
      : tiles(ceil_div(rows, kTileRows)),
        steps(ceil_div(k, kStep)),
        block(rows <= kFewRows ? kFewRowsBlock : kManyRowsBlock) {}
  int64_t x_row_bytes() const { return steps * kTileBytes; }  // of a tile of rows
  int64_t x_bytes() const { return tiles * x_row_bytes(); }
  int64_t copy_bytes() const { return kPair * std::min(block.terms, steps * kStep) * 2; }
  int64_t sums_floats() const { return block.columns * tiles * kTileRows; }
  // Of 32 columns times a tile of rows and those below.
  int64_t sums_at(int64_t column, int64_t tile) const { return (column / kPair * tiles + tile) * 2 * kTileFloats; }
  int64_t thread_bytes(bool gated) const { return copy_bytes() + (gated ? 2 : 1) * sums_floats() * 4; }
};

}  // namespace ZOETROPE_SIMD

// Where cpu_features().amx_bf16 is true.
void thin_gemm_amx(Stream& stream, const ThinGemm& args);

}  // namespace zoetrope::kernels
