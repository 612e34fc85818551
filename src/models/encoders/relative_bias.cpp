#include "models/encoders/relative_bias.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/dispatch.h"

namespace zoetrope::encoders {

int64_t relative_position_bucket(int64_t distance, int64_t buckets, int64_t max_distance) {
  const int64_t half = buckets / 2, exact = half / 2;
  const int64_t side = distance > 0 ? half : 0;
  const int64_t steps = std::abs(distance);
  if (steps < exact) return side + steps;
  // float32 as in the reference: the borders of the buckets depend on its rounding.
  const float position = std::log(static_cast<float>(steps) / static_cast<float>(exact)) /
                         static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact))) *
                         static_cast<float>(half - exact);
  return side + std::min(half - 1, exact + static_cast<int64_t>(position));
}

void fill_relative_values(const TensorView& table, IndexRange heads, int64_t max_distance, const TensorView& values) {
  const int64_t buckets = table.extent(0), all_heads = table.extent(1), count = values.extent(1);
  ZT_CHECK(table.contiguous() && values.contiguous() && values.dtype() == DType::kF32);
  ZT_CHECK(values.extent(0) == heads.size() && heads.end <= all_heads && count % 2 == 1);
  with_compute_type(table.dtype(), "relative_attention_bias", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bucket = relative_position_bucket(i - count / 2, buckets, max_distance);
      const T* row = table.data<T>() + bucket * all_heads + heads.begin;
      for (int64_t h = 0; h < heads.size(); ++h) values.data<float>()[h * count + i] = to_float(row[h]);
    }
  });
}

TensorView as_relative_bias(const TensorView& values, int64_t tokens) {
  const int64_t count = values.extent(1);
  ZT_CHECK(values.contiguous() && tokens <= count / 2 + 1);
  return {values.data<float>() + count / 2, DType::kF32, {values.extent(0), tokens, tokens}, {count, -1, 1}};
}

}  // namespace zoetrope::encoders
