// One pass over a large tensor on several threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/index_range.h"

namespace zoetrope::io {

// body(IndexRange) over parts of [0, count) in parallel; throws what the first part to fail threw. It starts threads of
// its own, because the source of weights does not know the ranks' thread teams; that takes tens of microseconds, a part
// about a millisecond.
template <typename Body>
void in_parts(int64_t count, int threads, const Body& body) {
  constexpr int64_t kWorthAThread = int64_t{1} << 20;  // elements
  const auto parts = static_cast<int>(std::clamp<int64_t>(count / kWorthAThread, 1, std::max(1, threads)));
  std::vector<std::exception_ptr> failures(static_cast<size_t>(parts));
  const auto run = [&](int part) {
    try {
      body(split_range(count, parts, part));
    } catch (...) {
      failures[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int part = 1; part < parts; ++part) others.emplace_back(run, part);
    run(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace zoetrope::io
