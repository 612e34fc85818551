// The seam between what is compiled for every machine (threads, masks, packing, states) and what is compiled for one
// instruction set: one query tile of one (batch, head) against all packed keys. Plain data and function pointers only,
// so that a file built for a wide instruction set brings no inline code that the linker could hand to others.
//
// Packed keys:   [panel][steps][panel_keys][pair], keys in lanes, zeros beyond the last key and beyond D; steps are
//                ⌈D/pair⌉, rounded up to a multiple of step_unit.
// Packed values: per key tile [value panel][⌈keys/pair⌉ of the padded tile][width][pair], head dims in lanes, zeros
//                beyond the last key and beyond D.
// `pair` neighbours share a 32-bit lane where the instruction set multiplies bf16 pairs, and is 1 in float32. In int8
// it is 4, or 2 where integers are multiplied as int16, and scales are packed as well (int8_panel.h).
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

namespace zoetrope::kernels {

// The sizes that an instruction set's tile was written and tuned for.
struct TileShape {
  DType operand;          // what packed keys, values, queries and weights are: F32, BF16 or I8
  int64_t lanes;          // float32 lanes of a vector; in int8 16, of one or two registers
  int64_t pair;           // operand elements in one 32-bit lane
  int64_t panel_keys;     // keys of a key panel
  int64_t value_vectors;  // vectors of a full value panel
  int64_t query_rows;     // rows of a register block; tiles are padded to a multiple of it
  int64_t step_unit;      // pairs of head dims that are multiplied at once: 16 with AMX, else 1
  int64_t weight_tiles;   // key tiles whose weights are kept: 2 where one's are computed while another's are multiplied
  // Chosen by the driver (tile_size.h), 0 in the instruction set's own shape.
  int64_t key_tile = 0;    // keys whose weights are kept at once: a multiple of panel_keys
  int64_t query_tile = 0;  // rows at most: a multiple of query_rows

  // Products of a score.
  [[gnu::always_inline]] int64_t steps(int64_t head_dim) const {
    return (head_dim + pair * step_unit - 1) / (pair * step_unit) * step_unit;
  }
};

// The widths of value panels: D in vectors, dealt out evenly over as few panels as full ones would need, so that no
// panel is much narrower than the others (D = 80 with 16 lanes is 3 + 2 vectors, not 4 + 1).
struct ValuePanels {
  int64_t vectors;  // of D
  int64_t count;

  [[gnu::always_inline]] ValuePanels(int64_t head_dim, const TileShape& shape)
      : vectors((head_dim + shape.lanes - 1) / shape.lanes),
        count((vectors + shape.value_vectors - 1) / shape.value_vectors) {}
  [[gnu::always_inline]] int64_t first_vector(int64_t panel) const { return panel * vectors / count; }
  [[gnu::always_inline]] int64_t width_vectors(int64_t panel) const {
    return first_vector(panel + 1) - first_vector(panel);
  }
};

// Bytes between two rows of weights: without them rows of weights and of queries are a multiple of 512 bytes apart,
// and stores of the ones hold up loads of the others that agree in the low twelve bits.
constexpr int64_t kWeightPadding = 64;

// Per-thread memory of a tile, 64-byte aligned. `rows` is query_tile, itself a multiple of query_rows.
struct TileScratch {
  void* weights;     // operand[weight_tiles][rows][key_tile + padding]; in int8 bytes without a sign, or int16
  float* sums;       // [rows][lanes]: sums of weights over earlier key tiles
  float* tile_sums;  // [rows][lanes]: of this key tile, zero before it
  float* minus_m;    // [rows]: −m, as exponents want it; −c in fixed-max, filled by the driver
  float* scores;     // [key_tile]: one row's, where its key tile is redone; [rows][key_tile] for kExact; not int8
  float* panels;  // [2 · key_tile / panel_keys + 1][rows], int8: tops, factors and sums of weights (int8_vector_tile.h)
};

enum class TileSoftmax : uint8_t {
  kLazy,           // a row's reference is that of its first panel until a check finds sums out of range
  kExact,          // the running maximum, tile by tile
  kFixed,          // the references in minus_m
  kFixedExponent,  // likewise, and weights scaled by two to the `exponent` of their row
};

struct TileTask {
  const void* q;  // operand[rows][q_stride]; steps·pair elements of a row are read, of rows up to the register block
  int64_t q_stride;  // elements
  // In int8, of rows up to the register block (Int8Queries); else null.
  const float* q_scales;
  const int32_t* q_corrections;
  const float* q_offsets;
  int64_t rows;
  int64_t head_dim;
  const void* keys;    // packed
  const void* values;  // packed
  int64_t key_count;   // ≥ 1 valid keys
  int64_t key_tile;
  int64_t weight_rows;  // of scratch.weights and scratch.panels
  float scale_log2e;
  TileSoftmax softmax;
  const float* exponent;     // [rows], whole numbers (kFixedExponent)
  const float* bias;         // [rows][…], or null
  int64_t bias_stride;       // floats from row to row
  const int32_t* key_index;  // packed key → column of the bias; null where they are the same
  float* o;                  // [rows][o_stride], o_stride ≥ D rounded up to whole vectors
  int64_t o_stride;
  float* l;  // [rows]
  float* m;  // [rows]; RowState::kNoKeys in all rows or in none: masks are per key, so rows see the first key together
  TileScratch scratch;
};

struct TileKernel {
  TileShape shape;
  void (*fold)(const TileTask& task);
};

const TileKernel& avx2_tile();
const TileKernel& avx512_tile();
const TileKernel& avx512_bf16_tile();
const TileKernel& avx512_int8_tile();
const TileKernel& avx_vnni_int8_tile();
const TileKernel& avx2_int8_tile();
const TileKernel& amx_bf16_tile();

}  // namespace zoetrope::kernels
