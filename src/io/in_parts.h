// A large tensor's elements divided over threads for one pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/index_range.h"

namespace zoetrope::io {

// body(IndexRange) over parts of [0, count) at once. Threads of its own, because this module is below the thread teams;
// their start is tens of microseconds against the millisecond that a part takes.
template <typename Body>
void in_parts(int64_t count, int threads, const Body& body) {
  constexpr int64_t kWorthAThread = int64_t{1} << 20;  // elements
  const auto parts = static_cast<int>(std::clamp<int64_t>(count / kWorthAThread, 1, std::max(1, threads)));
  std::vector<std::jthread> others;
  for (int part = 1; part < parts; ++part) {
    others.emplace_back([&body, range = split_range(count, parts, part)] { body(range); });
  }
  body(split_range(count, parts, 0));
}

}  // namespace zoetrope::io
