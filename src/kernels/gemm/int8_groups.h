// How numbers become int8 for matrix multiplication. The K terms of a row of x or w are divided into groups of 256; the
// last may be shorter.
//
// A whole group is rotated first: seen as [16][16], its 16 rows are multiplied with the Hadamard matrix of 16 divided
// by 4. That is orthonormal, so x·wᵀ stays what it is when both are rotated, and one large term is spread over sixteen.
// It needs additions between vectors only, none within one.
//
// Weights that a file has in int8 are taken as they are: with the file's scale of each row, and rotated as there: not,
// or by ConvRot (docs/spec/weights.md, 4.4), whose groups of 4, 16, 64 or 256 terms divide K. x is rotated alike.
//
// Then x is divided by a scale of its row and group, w by a scale of its row (an output channel): the largest magnitude
// becomes 127, values are rounded to nearest even. A product is Σ over groups of (int32 sum · scale of x), in float32
// and in order, times the scale of w.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/gemm/packed.h"
#include "tensor/convrot.h"

namespace zoetrope::kernels {

inline constexpr int64_t kInt8Group = 256, kInt8Lanes = 16;
inline constexpr float kInt8Most = 127;

inline int64_t int8_groups(int64_t k) { return (k + kInt8Group - 1) / kInt8Group; }
// Terms of a group as it is stored: a dot product takes four.
inline int64_t int8_stored_terms(int64_t k, int64_t group) {
  return (std::min(kInt8Group, k - group * kInt8Group) + 3) / 4 * 4;
}
inline int64_t int8_stored_terms(int64_t k) { return (k + 3) / 4 * 4; }

inline void rotate_group(float* group) {
  for (int64_t half = kInt8Lanes; half < kInt8Group; half *= 2) {
    for (int64_t pair = 0; pair < kInt8Group; pair += 2 * half) {
      for (int64_t i = pair; i < pair + half; ++i) {
        const float a = group[i], b = group[i + half];
        group[i] = a + b;
        group[i + half] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < kInt8Group; ++i) group[i] *= 0.25f;
}

inline void rotate_convrot(float* x, int64_t group) {
  rotate_unscaled(x, group);
  const float inverse = 1 / static_cast<float>(convrot_root(group));
  for (int64_t i = 0; i < group; ++i) x[i] *= inverse;
}

// One row, in place.
inline void rotate_row(float* row, int64_t k, int rotation = kInt8Hadamard) {
  if (rotation == kInt8Hadamard) {
    for (int64_t i = 0; i + kInt8Group <= k; i += kInt8Group) rotate_group(row + i);
  } else if (rotation > 0) {
    for (int64_t i = 0; i < k; i += rotation) rotate_convrot(row + i, rotation);
  }
}

// The scale of values of which the largest magnitude is `most`, and what they are multiplied by. Below 2^-100 they
// count as zeros, so that 127 / most stays finite; where a value is infinite or not a number, the scale is neither, and
// so is every sum that it belongs to.
struct Int8Scale {
  float scale, factor;
};
inline Int8Scale int8_scale(float most) {
  if (most < 0x1p-100f) return {0, 0};
  return {most / kInt8Most, kInt8Most / most};
}

}  // namespace zoetrope::kernels
