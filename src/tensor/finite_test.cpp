#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/half.h"

namespace zoetrope {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// At every place of a size that is not a whole number of blocks, and never where all are finite, however large or
// small.
TEST(FirstNonFinite, IsFoundWhereverItStands) {
  Tensor floats(DType::kF32, {3, 1001}), halves(DType::kBF16, {3, 1001});
  for (int64_t i = 0; i < floats.size(); ++i) {
    const float value = i % 3 == 0   ? std::numeric_limits<float>::max()
                        : i % 3 == 1 ? std::numeric_limits<float>::denorm_min()
                                     : -0.0f;
    floats.data<float>()[i] = value;
    halves.data<BFloat16>()[i] = {static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
  }
  EXPECT_FALSE(first_non_finite(floats));
  EXPECT_FALSE(first_non_finite(halves));
  for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1023}, int64_t{1024}, int64_t{3002}}) {
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
      const float before = floats.data<float>()[at];
      const BFloat16 half_before = halves.data<BFloat16>()[at];
      floats.data<float>()[at] = bad;
      halves.data<BFloat16>()[at] = to_bfloat16(bad);
      for (const Tensor* tensor : {&floats, &halves}) {
        const auto found = first_non_finite(*tensor);
        ASSERT_TRUE(found) << at;
        EXPECT_EQ(found->index, at);
        EXPECT_EQ(std::isnan(found->value), std::isnan(bad));
        if (!std::isnan(bad)) {
          EXPECT_EQ(found->value, bad);
        }
      }
      floats.data<float>()[at] = before;
      halves.data<BFloat16>()[at] = half_before;
    }
  }
}

TEST(FirstNonFinite, OfStridedViewsCountsTheirOwnElements) {
  Tensor values(DType::kF32, {4, 6});
  values.data<float>()[2 * 6 + 3] = kInfinity;
  EXPECT_EQ(first_non_finite(values.view().slice(1, 2, 5))->index, 2 * 3 + 1);
  EXPECT_EQ(first_non_finite(values.view().permute({1, 0}))->index, 3 * 4 + 2);
  EXPECT_FALSE(first_non_finite(values.view().slice(1, 4, 6)));
  EXPECT_FALSE(first_non_finite(Tensor(DType::kF32, {0, 3})));
}

}  // namespace
}  // namespace zoetrope
