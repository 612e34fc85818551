// thin_gemm() on matrix units (AMX), for BF16 rows and BF16 weights. What is asked on every CPU, sizes above all, is
// compiled for every CPU: thin_amx.cpp has only what runs on the units.
#pragma once

#include <algorithm>

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

// How rows of x and the columns of a thread are cut.
struct ThinAmxSizes {
  static constexpr int64_t kTileRows = 16, kTileBytes = 1024, kTileFloats = 256;
  static constexpr int64_t kStep = 32;             // terms of a tile of weights
  static constexpr int64_t kPair = 2 * kTileRows;  // columns, and rows, that are multiplied together
  // Rows that one pass over the weights serves, so that scratch stays bounded.
  static constexpr int64_t kPassRows = 1024;

  // What a thread sums at a time: columns, and terms before sums go to memory and the next columns come. Few rows wait
  // for memory and like their weights asked for soon before use: 2048 terms lost 10 % at 32 rows, 64 columns 3 to 5 %.
  // With more, 512 terms lost 15 % at 64 and 10 % at 512 rows; 1024 lost half of that; 128 and 256 columns differed by
  // less than the scatter.
  struct Cut {
    int64_t columns, terms;
  };
  static constexpr int64_t kFewRows = 48;
  static constexpr Cut kFewCut{32, 512}, kManyCut{64, 2048};

  int64_t tiles, steps;  // of rows, and of terms
  Cut cut;
  ThinAmxSizes(int64_t rows, int64_t k)
      : tiles(ceil_div(rows, kTileRows)), steps(ceil_div(k, kStep)), cut(rows <= kFewRows ? kFewCut : kManyCut) {}
  int64_t x_row_bytes() const { return steps * kTileBytes; }  // of a tile of rows
  int64_t x_bytes() const { return tiles * x_row_bytes(); }
  int64_t copy_bytes() const { return kPair * std::min(cut.terms, steps * kStep) * 2; }
  int64_t sums_floats() const { return cut.columns * tiles * kTileRows; }
  // Of 32 columns times a tile of rows and those below.
  int64_t sums_at(int64_t column, int64_t tile) const { return (column / kPair * tiles + tile) * 2 * kTileFloats; }
  int64_t room_bytes(bool gated) const { return copy_bytes() + (gated ? 2 : 1) * sums_floats() * 4; }
};

}  // namespace ZOETROPE_SIMD

// Where cpu_features().amx_bf16 is true.
void thin_gemm_amx(Stream& stream, const ThinGemm& args);

}  // namespace zoetrope::kernels
