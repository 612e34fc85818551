// Keys and values of one (batch, head) brought into the order the tiles read (tile.h). Masked keys are left out here,
// which is why no later loop knows of masks. 8×8 transposes and interleaves on the AVX2 baseline, for every tile.
#pragma once

#include <cstdint>

#include "kernels/flash_attention/tile.h"

namespace zoetrope::kernels {

// Rows of one head in memory, of which `index` (or the first ones) take part.
struct PackSource {
  const void* data;      // first row
  int64_t stride;        // elements from row to row
  DType dtype;           // F32 or BF16; BF16 is converted where the operand is F32
  const int32_t* index;  // packed key → row; null: the same
  int64_t count;         // packed keys
  int64_t head_dim;
};

int64_t packed_keys_bytes(const TileShape& shape, int64_t keys, int64_t head_dim);
int64_t packed_values_bytes(const TileShape& shape, int64_t keys, int64_t head_dim);

// The part of the packs that belongs to key tile `tile` of the source.
void pack_keys(const TileShape& shape, const PackSource& source, int64_t tile, void* packed);
void pack_values(const TileShape& shape, const PackSource& source, int64_t tile, void* packed);

// Rows [begin, begin + rows) as operands, [rows][steps·pair], zero-padded: for queries whose own memory will not do.
void pack_rows(const TileShape& shape, const PackSource& source, int64_t begin, int64_t rows, void* packed);

}  // namespace zoetrope::kernels
