// The one rule by which anything is dealt out over parts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "zoetrope/index_range.h"

namespace zoetrope {

// Part `index` of `total` items dealt out over `parts`: [⌊index·total/parts⌋, ⌊(index+1)·total/parts⌋). Sizes differ by
// at most one; parts are empty where total < parts.
constexpr IndexRange split_range(int64_t total, int64_t parts, int64_t index) {
  return {index * total / parts, (index + 1) * total / parts};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace zoetrope
