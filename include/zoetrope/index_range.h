// Half-open ranges of tokens, heads, rows or frames.
#pragma once

#include <cstdint>

namespace zoetrope {

// [begin, end)
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool contains(int64_t i) const { return begin <= i && i < end; }
  friend constexpr bool operator==(const IndexRange&, const IndexRange&) = default;
};

}  // namespace zoetrope
