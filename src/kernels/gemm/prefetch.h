// Cache lines that are prefetched a few with each step of a multiplication: all at once they would wait for one
// another. A prefetch of a page that is not mapped yet does nothing; the first real read of it waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/index_range.h"

namespace zoetrope::kernels {

// Passed between files compiled for different instruction sets, hence always_inline: no function of it may be linked.
struct Prefetch {
  static constexpr int64_t kLine = 64;  // bytes
  const std::byte* row = nullptr;
  int64_t row_stride = 0, row_bytes = 0, at = 0;  // bytes
  int64_t left = 0, each = 0;                     // lines: of all, and per step

  Prefetch() = default;
  // `bytes` of each of `rows` rows, spread over `steps` steps.
  __attribute__((always_inline)) Prefetch(const void* first, int64_t stride, int64_t bytes, int64_t rows, int64_t steps)
      : row(static_cast<const std::byte*>(first)),
        row_stride(stride),
        row_bytes(bytes),
        left(rows * ceil_div(bytes, kLine)),
        each(ceil_div(left, steps)) {}

  // Localities of __builtin_prefetch.
  static constexpr int kIntoL1 = 3, kIntoL2 = 2;

  template <int kLocality>
  inline __attribute__((always_inline)) void step() {
    for (int64_t i = std::min(each, left); i > 0; --i, --left) {
      __builtin_prefetch(row + at, 0, kLocality);
      at += kLine;
      if (at < row_bytes) continue;
      at = 0;
      row += row_stride;
    }
  }
};

}  // namespace zoetrope::kernels
