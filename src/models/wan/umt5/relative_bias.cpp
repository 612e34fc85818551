#include "models/wan/umt5/relative_bias.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "tensor/dispatch.h"

namespace zoetrope::wan {

int64_t relative_position_bucket(int64_t distance, int64_t buckets, int64_t max_distance) {
  const int64_t half = buckets / 2, exact = half / 2;
  const int64_t side = distance > 0 ? half : 0;
  const int64_t steps = std::abs(distance);
  if (steps < exact) return side + steps;
  // float32 as in the reference: the edges of the buckets depend on its rounding.
  const float position = std::log(static_cast<float>(steps) / static_cast<float>(exact)) /
                         static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact))) *
                         static_cast<float>(half - exact);
  return side + std::min(half - 1, exact + static_cast<int64_t>(position));
}

void fill_relative_bias(Stream& stream, const TensorView& table, int64_t max_distance, const TensorView& bias) {
  const int64_t buckets = table.extent(0), heads = table.extent(1), rows = bias.extent(1);
  ZT_CHECK(table.contiguous() && bias.contiguous() && bias.dtype() == DType::kF32);
  ZT_CHECK(bias.shape() == Shape({heads, rows, rows}));
  std::vector<int64_t> bucket;  // of the distances −(L − 1) … L − 1
  for (int64_t distance = 1 - rows; distance < rows; ++distance) {
    bucket.push_back(relative_position_bucket(distance, buckets, max_distance));
  }
  with_compute_type(table.dtype(), "relative_attention_bias", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Row i of a head is the line of its values over all distances, seen through a window that begins at −i.
    stream.team().parallel_for(heads, 1, [&](IndexRange range, int) {
      std::vector<float> line(bucket.size());
      for (int64_t h = range.begin; h < range.end; ++h) {
        for (size_t i = 0; i < line.size(); ++i) line[i] = to_float(table.data<T>()[bucket[i] * heads + h]);
        for (int64_t i = 0; i < rows; ++i) {
          std::copy_n(line.data() + (rows - 1 - i), rows, bias.data<float>() + (h * rows + i) * rows);
        }
      }
    });
  });
}

}  // namespace zoetrope::wan
