// thin_gemm() on matrix units (AMX), for BF16 rows and BF16 weights. What is asked on every CPU, sizes above all, is
// compiled for every CPU: thin_amx.cpp has only what runs on the units.
#pragma once

#include "base/index_range.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

// How rows of x and the columns of a thread are cut.
struct ThinAmxSizes {
  static constexpr int64_t kTileRows = 16, kTileBytes = 1024;
  static constexpr int64_t kStep = 32;  // terms of a tile of weights
  // Terms summed in the units before sums go to memory: of two tiles of weights 32 KiB. 1024 and 2048, blocks of 32
  // columns, and asking ahead into L1 or not at all differed by less than the scatter of 8 and 32 rows (10 %).
  static constexpr int64_t kPiece = 512;
  static constexpr int64_t kPairColumns = 2 * kTileRows;  // of weights that are multiplied together
  // Rows that one pass over the weights serves, so that scratch stays bounded.
  static constexpr int64_t kPassRows = 1024;
  // Up to so many, weights are multiplied with where they lie. Beyond, each is read often enough to be copied first:
  // rows of the map are a power of two apart and would push one another out of the first cache.
  static constexpr int64_t kFewRows = 96;

  int64_t tiles, steps, block;  // tiles of rows; tiles of terms; columns that a thread sums at a time
  ThinAmxSizes(int64_t rows, int64_t k)
      : tiles(ceil_div(rows, kTileRows)), steps(ceil_div(k, kStep)), block(rows <= kFewRows ? 64 : 128) {}
  int64_t x_bytes() const { return tiles * steps * kTileBytes; }
  int64_t copy_bytes() const { return kPairColumns * kPiece * 2; }
  int64_t sums_floats() const { return block * tiles * kTileRows; }
  int64_t room_bytes(bool gated) const { return copy_bytes() + (gated ? 2 : 1) * sums_floats() * 4; }
};

}  // namespace ZOETROPE_SIMD

// Where cpu_features().amx_bf16 is true.
void thin_gemm_amx(Stream& stream, const ThinGemm& args);

}  // namespace zoetrope::kernels
