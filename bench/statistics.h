// Statistics of repeats: the least (what the machine can do) and the median (what it did while others used it too).
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "base/error.h"

namespace zoetrope::bench {

inline double minimum(const std::vector<double>& values) {
  ZT_CHECK(!values.empty());
  return *std::min_element(values.begin(), values.end());
}

inline double maximum(const std::vector<double>& values) {
  ZT_CHECK(!values.empty());
  return *std::max_element(values.begin(), values.end());
}

// The mean of the middle two where there is no middle.
inline double median(std::vector<double> values) {
  ZT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// get() of each of `items`.
template <typename T, typename Get>
std::vector<double> each(const std::vector<T>& items, const Get& get) {
  std::vector<double> values;
  for (const T& item : items) values.push_back(std::invoke(get, item));
  return values;
}

}  // namespace zoetrope::bench
