// Vectors in fewer bits, to be sent: narrow() rounds them, widen() gives back what is computed with. All
// implementations make the same bits, on every machine. What is sent, when and to whom is not known here.
//
//   bfloat16   D values, rounded to nearest even
//   int8       a float32 scale for each kNarrowBlock values, then D values: x ≈ scale·value, |value| ≤ 127. The scale
//              is the largest |x| of the block / 127, and values are rounded to nearest, so that each is off by at most
//              half a scale. A block with a value that is not finite becomes NaN as a whole, and one in which no |x|
//              reaches 2^-100 becomes zero.
//
// Either is filled up to whole float32s.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

enum class NarrowFormat : uint8_t { kBFloat16, kInt8 };

inline constexpr int64_t kNarrowBlock = 32;

int64_t narrow_bytes(NarrowFormat format, int64_t head_dim);  // of one vector

// Sums of squares, of what narrow() changed and of all values.
struct Rounding {
  double changes = 0, values = 0;
  double relative_l2() const { return changes > 0 ? std::sqrt(changes / values) : 0; }
  Rounding& operator+=(const Rounding& more) {
    changes += more.changes;
    values += more.values;
    return *this;
  }
};

// x [B, S, H, D] of F32 or BF16, D contiguous; narrowed [B, S, H, narrow_bytes()] U8, the last axis contiguous.
// Measures what widen() into x's dtype will give; vectors that are not finite do not count. `implementation` forces
// "avx2" or "reference".
Rounding narrow(Stream& stream, NarrowFormat format, const TensorView& x, const TensorView& narrowed,
                std::string_view implementation = {});

void widen(Stream& stream, NarrowFormat format, const TensorView& narrowed, const TensorView& x,
           std::string_view implementation = {});

}  // namespace zoetrope::kernels
