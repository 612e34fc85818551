// Lines of memory asked for ahead of their use, some with each step of a product: in one go they would wait for one
// another. Pages that are not mapped yet are not asked for; the first real read of those waits.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/index_range.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

struct Ahead {
  static constexpr int64_t kLine = 64;
  const std::byte* row = nullptr;
  int64_t row_bytes = 0, width = 0, at = 0, left = 0, each = 0;

  Ahead() = default;
  // `bytes` of each of so many rows, over so many steps.
  Ahead(const void* first, int64_t stride, int64_t bytes, int64_t rows, int64_t steps)
      : row(static_cast<const std::byte*>(first)),
        row_bytes(stride),
        width(bytes),
        left(rows * ceil_div(bytes, kLine)),
        each(ceil_div(left, steps)) {}

  template <_mm_hint kHint>
  inline __attribute__((always_inline)) void ask() {
    for (int64_t i = std::min(each, left); i > 0; --i, --left) {
      _mm_prefetch(reinterpret_cast<const char*>(row + at), kHint);
      at += kLine;
      if (at < width) continue;
      at = 0;
      row += row_bytes;
    }
  }
};

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels
