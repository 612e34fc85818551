// Half-open ranges of indices and the one rule by which anything is dealt out over parts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zoetrope {

// [begin, end) of tokens, heads, rows or frames.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool contains(int64_t i) const { return begin <= i && i < end; }
  friend constexpr bool operator==(const IndexRange&, const IndexRange&) = default;
};

// Part `index` of `total` items dealt out over `parts`: [⌊index·total/parts⌋, ⌊(index+1)·total/parts⌋). Sizes differ by
// at most one; parts are empty where total < parts.
constexpr IndexRange split_range(int64_t total, int64_t parts, int64_t index) {
  return {index * total / parts, (index + 1) * total / parts};
}

constexpr IndexRange intersect(IndexRange a, IndexRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace zoetrope
