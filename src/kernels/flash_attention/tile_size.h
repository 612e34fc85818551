// The sizes of query and key tiles: one table, the losers noted, and what a caller may ask for instead.
#pragma once

#include "base/index_range.h"
#include "kernels/flash_attention/fixed_max.h"
#include "kernels/flash_attention/tile.h"

namespace zoetrope::kernels {

// Measured on 512-bit cores with 2 MB of second cache level: query tiles of 128 to 512 rows are alike; 64 lose 0.5 to 2
// points, 32 lose 4 to 6. Key tiles of 64 lose 2.5, 512 and more 0.5.
constexpr TileSizes kTileSizesBf16{256, 256};
// With AMX sums go to o once per key tile, which keeps the multiplier waiting: 256 keys lose 6 %, 1024 gain nothing at
// 2048 keys and 5 % at 1024; 64 to 512 rows are alike.
constexpr TileSizes kTileSizesAmx{256, 512};
// As bf16: values of more keys would share a scale. 64 to 256 rows and 128 to 512 keys are within 8 %.
constexpr TileSizes kTileSizesInt8{256, 256};
constexpr TileSizes kTileSizesF32{256, 128};
constexpr TileSizes kTileSizesF32Narrow{256, 256};  // eight lanes: the same bytes of weights

// Rows whose softmax is decided together.
inline int64_t gate_rows(const TileShape& shape) { return round_up(kGateRows, shape.query_rows); }

// The shape with its tiles: as wanted where something is, rounded to what the instruction set's blocks allow.
inline TileShape with_tile_sizes(TileShape shape, const TileSizes& wanted) {
  const TileSizes& table = shape.step_unit > 1             ? kTileSizesAmx
                           : shape.operand == DType::kBF16 ? kTileSizesBf16
                           : shape.operand == DType::kI8   ? kTileSizesInt8
                           : shape.lanes < 16              ? kTileSizesF32Narrow
                                                           : kTileSizesF32;
  const int64_t rows = wanted.query > 0 ? wanted.query : table.query;
  const int64_t keys = wanted.keys > 0 ? wanted.keys : table.keys;
  shape.query_tile = round_up(rows, gate_rows(shape));
  shape.key_tile = round_up(keys, shape.panel_keys);
  return shape;
}

}  // namespace zoetrope::kernels
