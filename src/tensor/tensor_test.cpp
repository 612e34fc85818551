#include "zoetrope/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "tensor/copy_of.h"
#include "tensor/half.h"
#include "tensor/relative_l2.h"

namespace zoetrope {
namespace {

TEST(TensorView, SlicesSelectsAndPermutesWithoutMovingData) {
  Tensor owner(DType::kI32, {2, 3, 4});
  std::iota(owner.data<int32_t>(), owner.data<int32_t>() + 24, 0);
  const TensorView view = owner;
  EXPECT_EQ(*view.slice(1, 1, 3).select(0, 1).data<int32_t>(), 16);
  const TensorView turned = view.permute({2, 0, 1});
  EXPECT_EQ(turned.shape(), (Shape{4, 2, 3}));
  EXPECT_FALSE(turned.contiguous());
  EXPECT_EQ(*turned.select(0, 3).select(0, 1).select(0, 2).data<int32_t>(), 23);
  EXPECT_EQ(turned.split_axis(0, 2, 2).shape(), (Shape{2, 2, 2, 3}));
  EXPECT_EQ(*turned.split_axis(0, 2, 2).select(0, 1).data<int32_t>(), 2);
  EXPECT_TRUE(view.slice(0, 1, 2).contiguous());
}

TEST(TensorView, OfNoDataStaysEmptyThroughSlices) {
  const TensorView none;
  EXPECT_FALSE(none);
  EXPECT_TRUE(none.empty());
}

// Around the size from which memory is mapped: all of it can be written, on lines and then on large pages.
TEST(Tensor, MemoryIsAlignedAndWhole) {
  constexpr int64_t kLarge = int64_t{2} << 20;
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, kLarge - 1, kLarge, kLarge + 1, 3 * kLarge + 4097}) {
    Tensor tensor = Tensor::uninitialized(DType::kU8, {bytes});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data<char>()) % 64, 0u) << bytes;
    std::memset(tensor.data<char>(), 7, static_cast<size_t>(bytes));
    const Tensor moved = std::move(tensor);
    if (bytes > 0) {
      EXPECT_EQ(moved.data<char>()[bytes - 1], 7);
    }
    EXPECT_EQ(Tensor(DType::kU8, {bytes}).size(), bytes);
  }
}

TEST(Tensor, ACopyHasMemoryOfItsOwn) {
  Tensor values(DType::kF32, {2, 3});
  std::iota(values.data<float>(), values.data<float>() + 6, 1.0f);
  const Tensor row = copy_of(values.view().select(0, 1));
  values.data<float>()[3] = 0;
  EXPECT_EQ(row.view().shape(), (Shape{3}));
  EXPECT_EQ(row.data<float>()[0], 4);
  EXPECT_EQ(row.data<float>()[2], 6);
  EXPECT_EQ(copy_of(Tensor(DType::kBF16, {0, 4})).view().shape(), (Shape{0, 4}));
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie to even
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(to_float(to_bfloat16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
}

TEST(RelativeL2, IsTheDistanceInUnitsOfTheReference) {
  float ours[] = {3, 4, 1}, reference[] = {3, 0, 4}, zero[] = {0, 0, 0};
  const auto view = [](float* values) { return TensorView(values, DType::kF32, {3}); };
  EXPECT_DOUBLE_EQ(relative_l2(view(ours), view(reference)), 1);  // 0, 4, 3 of 3, 0, 4
  EXPECT_DOUBLE_EQ(relative_l2(view(zero), view(reference)), 1);
  EXPECT_EQ(relative_l2(view(ours), view(ours)), 0);
  EXPECT_EQ(relative_l2(view(zero), view(zero)), 0);
}

TEST(RelativeL2, OfWhatIsNotCloseIsAboveEveryBound) {
  const auto off = [](float value, float reference) {
    return relative_l2({&value, DType::kF32, {1}}, {&reference, DType::kF32, {1}});
  };
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [value, reference] :
       {std::pair{kNan, 1.0f}, std::pair{1.0f, kNan}, std::pair{kInf, 1.0f}, std::pair{1.0f, 0.0f}}) {
    EXPECT_EQ(off(value, reference), std::numeric_limits<double>::infinity()) << value << " " << reference;
  }
  EXPECT_EQ(off(kInf, kInf), std::numeric_limits<double>::infinity());
  EXPECT_EQ(off(1.0f, kInf), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace zoetrope
