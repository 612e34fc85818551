// What kernel tests share: seeded random fill, strided tensors with guarded gaps, and comparison against float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "tensor/half.h"

namespace zoetrope::kernels::test {

// Every element of a view in row-major order of its extents, whatever its strides: visit(index, offset in elements).
template <typename Visit>
void for_each_element(const TensorView& view, Visit&& visit) {
  std::array<int64_t, Shape::kMaxRank> extent{}, stride{};
  extent.fill(1);
  for (int axis = 0; axis < view.rank() && axis < Shape::kMaxRank; ++axis) {
    extent[static_cast<size_t>(axis)] = view.extent(axis);
    stride[static_cast<size_t>(axis)] = view.stride(axis);
  }
  int64_t index = 0;
  for (int64_t a = 0; a < extent[0]; ++a)
    for (int64_t b = 0; b < extent[1]; ++b)
      for (int64_t c = 0; c < extent[2]; ++c)
        for (int64_t d = 0; d < extent[3]; ++d)
          for (int64_t e = 0; e < extent[4]; ++e)
            visit(index++, a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3] + e * stride[4]);
}

inline double get(const TensorView& view, int64_t offset) {
  switch (view.dtype()) {
    case DType::kBF16:
      return to_float(view.data<BFloat16>()[offset]);
    case DType::kF64:
      return view.data<double>()[offset];
    default:
      return view.data<float>()[offset];
  }
}

inline void put(const TensorView& view, int64_t offset, double value) {
  switch (view.dtype()) {
    case DType::kBF16:
      view.data<BFloat16>()[offset] = to_bfloat16(static_cast<float>(value));
      break;
    case DType::kF64:
      view.data<double>()[offset] = value;
      break;
    default:
      view.data<float>()[offset] = static_cast<float>(value);
  }
}

inline std::vector<double> values(const TensorView& view) {
  std::vector<double> out(static_cast<size_t>(view.size()));
  for_each_element(view, [&](int64_t index, int64_t offset) { out[static_cast<size_t>(index)] = get(view, offset); });
  return out;
}

// Normal values, the same for the same seed.
inline void fill_random(const TensorView& view, uint64_t seed, double mean = 0, double deviation = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  for_each_element(view, [&](int64_t, int64_t offset) { put(view, offset, normal(generator)); });
}

inline Tensor random_tensor(DType dtype, const Shape& shape, uint64_t seed, double mean = 0, double deviation = 1) {
  Tensor tensor(dtype, shape);
  fill_random(tensor, seed, mean, deviation);
  return tensor;
}

// A tensor whose rows (last axis) are `gap` elements apart in memory that is otherwise `kGuard`; gaps_intact() tells
// whether an op wrote between them.
class GappedTensor {
 public:
  static constexpr double kGuard = -77.0;

  GappedTensor(DType dtype, const Shape& shape, int64_t gap) {
    const int last = std::max(0, shape.rank() - 1);
    const int64_t row = shape[last];
    Shape wide = shape;
    wide[last] = row + gap;
    whole_ = Tensor(dtype, wide);
    for_each_element(whole_, [&](int64_t, int64_t offset) { put(whole_, offset, kGuard); });
    inner_ = whole_.view().slice(last, 0, row);
    gap_ = whole_.view().slice(last, row, row + gap);
  }
  const TensorView& view() const { return inner_; }
  operator const TensorView&() const { return inner_; }  // NOLINT: used wherever a view is
  bool gaps_intact() const {
    bool intact = true;
    for_each_element(gap_, [&](int64_t, int64_t offset) { intact = intact && get(gap_, offset) == kGuard; });
    return intact;
  }

 private:
  Tensor whole_;
  TensorView inner_, gap_;
};

struct Difference {
  double relative_l2 = 0;  // ‖a − b‖₂ / ‖b‖₂
  double max_abs = 0;
  bool finite = true;
};

inline Difference difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  Difference d;
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = actual[i] - expected[i];
    d.finite = d.finite && std::isfinite(actual[i]);
    error += e * e;
    norm += expected[i] * expected[i];
    d.max_abs = std::max(d.max_abs, std::abs(e));
  }
  d.relative_l2 = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return d;
}

// EXPECT_TRUE(close(actual, expected, 2e-7)): sizes equal, every value finite, relative L2 at most the bound.
inline testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& expected,
                                      double relative_l2) {
  if (actual.size() != expected.size())
    return testing::AssertionFailure() << actual.size() << " values instead of " << expected.size();
  const Difference d = difference(actual, expected);
  if (d.finite && d.relative_l2 <= relative_l2) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "relative L2 " << d.relative_l2 << " > " << relative_l2 << ", max abs "
                                     << d.max_abs << (d.finite ? "" : ", not finite");
}
inline testing::AssertionResult close(const TensorView& actual, const std::vector<double>& expected,
                                      double relative_l2) {
  return close(values(actual), expected, relative_l2);
}

// Unit roundoffs: the largest relative error, hence the largest relative L2, of one rounding to nearest.
constexpr double kUnitF32 = 0x1p-24;
constexpr double kUnitBF16 = 0x1p-8;

inline double rounding_of(DType dtype) { return dtype == DType::kBF16 ? kUnitBF16 : kUnitF32; }

}  // namespace zoetrope::kernels::test
