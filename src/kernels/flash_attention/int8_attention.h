// How attention is computed in int8, and the packing of what is multiplied. Scores, as q·kᵀ:
//
//  1. From the keys of a block the mean k̄ of its valid ones is subtracted: q·k = q·(k − k̄) + q·k̄. The second term is
//     one number per row. It is computed in float32 and added back, so that scores stay what they are: blocks, each
//     with a mean of its own, fold into one state whatever they are cut into, and the log-sum-exp holds.
//  2. Rows of q and k − k̄ are rotated by a Hadamard matrix of the largest power of two that divides D (128 of 128, 16
//     of 80, none of an odd D), block by block. A product of two rows that are not divided by the root of its order is
//     larger by the order; nothing else changes, and one large element is spread over the whole block.
//  3. A row is divided by a scale of its own, so that its largest magnitude is 127, and rounded to nearest even.
//
// A score is (int32 sum · scale of k · scale of q) + q·k̄. A row with an element that is not finite gets NaN for its
// scale, so that every score of it is NaN.
//
// Output, as p·v:
//
//  4. The weights of a row and a panel of 64 keys are divided by the largest of them and multiplied by 255, and rounded
//     to bytes. Sums of weights are those of the rounded ones, so that o is a weighted mean exactly.
//  5. From the values of a key tile (256 keys) the middle between the smallest and the largest is subtracted, channel
//     by channel; what is left is divided by a scale of the channel, so that its largest magnitude is 127, and rounded.
//     The middle comes back multiplied by the sum of the tile's weights. A channel with a value that is not finite gets
//     NaN for its scale.
//
// o is Σ over panels (factor · int32 sum) · scale of the channel + middle · sum of weights, over key tiles.
#pragma once

#include <cstdint>

#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/int8_panel.h"
#include "kernels/flash_attention/pack.h"
#include "tensor/half.h"

namespace zoetrope::kernels {

inline int64_t rotation_size(int64_t head_dim) { return head_dim & -head_dim; }
// Of a row as it is stored: a dot product takes four.
inline int64_t int8_row_bytes(int64_t head_dim) { return (head_dim + 3) / 4 * 4; }

struct Int8Row {
  float scale;  // of the rotated row, see rotation_size()
  int32_t sum;  // of its int8 values
};

// x − mean (null: 0) of BF16, rotated and rounded, zeros up to int8_row_bytes().
Int8Row int8_row(const BFloat16* x, const float* mean, int64_t head_dim, int8_t* to);
// q·k̄ in float32.
float mean_product(const BFloat16* q, const float* mean, int64_t head_dim);

// The part of a head's packed keys that belongs to a key tile (int8_panel.h). Where a key of a panel is not finite, all
// its scales are NaN: that key spoils all rows, and a byte could not say it.
void pack_int8_keys(const TileShape& shape, const PackSource& source, const float* mean, int64_t tile, void* packed);

// The middle of the range of each channel, its scale and what it is multiplied by to be rounded.
struct Int8Channels {
  float* scales;
  float* centers;
  float* factors;
};
// Of keys [begin, end) of a source of values; [D rounded up to `lanes`], zeros beyond D.
void measure_int8_channels(const PackSource& values, int64_t begin, int64_t end, int64_t lanes,
                           const Int8Channels& channels);
// A row of values, rounded; [D rounded up to eight].
void int8_value_row(const BFloat16* v, const Int8Channels& channels, int64_t head_dim, int8_t* to);
// The part of a head's packed values that belongs to a key tile.
void pack_int8_values(const TileShape& shape, const PackSource& source, int64_t tile, void* packed);

// Queries of a tile, and what belongs to each row. Filled up to whole register blocks, with the last row again.
struct Int8Queries {
  void* rows = nullptr;            // [rows][steps·pair] int8, or int16 where a pair is two
  float* scales = nullptr;         // with |scale|·log₂e and the rotation's order in them; its sign is in the rows
  int32_t* corrections = nullptr;  // −128·Σ of the row, which the keys' 128 adds; 0 where they have none
  float* offsets = nullptr;        // q·k̄·scale·log₂e
};
void pack_int8_queries(const TileShape& shape, const PackSource& source, const float* mean, float scale_log2e,
                       int64_t begin, int64_t rows, const Int8Queries& to);

// By how much int8 moves o: relative L2, of a sample of a head's queries, and of its keys with their values: eight
// queries and an eighth of the keys, at least 16 and at most 256, evenly spaced, and the four of the largest norm of
// each, which may be all that matters. Values are rounded with the scales that they will have, of key tiles of
// `key_tile`. Biases are left out. NaN where something is not finite. On a Zen 3 core a head of 1560 tokens takes
// 0.41 ms, one of 8192 1.6 ms, most of it to read all rows. `scratch` has int8_sample_bytes(), 64-byte aligned.
double int8_output_error(const PackSource& queries, const PackSource& keys, const PackSource& values, const float* mean,
                         float scale_log2e, int64_t key_tile, void* scratch);
int64_t int8_sample_bytes();

// What becomes of the heads of a block, one after another.
class Int8Heads {
 public:
  explicit Int8Heads(const FlashProblem& problem) : limit_(problem.int8_limit) {}
  // Whether a head with this error is multiplied in int8.
  bool take(double error);
  void store_in(TileCounts& counts) const;

 private:
  double limit_;
  TileCounts counts_;
};

// By how much |q·k − q·k̄| may grow, as a factor on ‖q‖·‖k − k̂‖ with k̂ the mean of all keys, which may be another than
// the block's. Rounding moves an element by at most 1/254 of the row's norm, a row by ε = √D/254 of it. Both sides:
// (1 + ε)² − 1 of ‖q‖·‖k − k̄‖, and ‖k − k̄‖ is at most twice what ‖k − k̂‖ is at most.
double int8_score_growth(int64_t head_dim);

}  // namespace zoetrope::kernels
