#include "models/wan/transformer/motion_basis.h"

#include <gtest/gtest.h>

#include <vector>

namespace zoetrope::wan {
namespace {

// The example of wan.md section 14.3. The 1e-8 that is added moves no digit that is compared.
TEST(MotionBasis, SignsAreThoseOfHouseholderReflections) {
  const std::vector<float> weight{-1, 2, 0, 2, 1, 1, 2, -2, 3, 4, 0, 1};
  const std::vector<float> expected{-0.2f, -0.636377f, -0.571477f, 0.4f, -0.456532f, -0.259762f,
                                    0.4f,  0.581040f,  -0.701358f, 0.8f, -0.221349f, 0.337691f};
  Tensor matrix(DType::kF32, {4, 3});
  std::copy(weight.begin(), weight.end(), matrix.data<float>());
  const Tensor basis = motion_basis(matrix);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(basis.data<float>()[i], expected[i], 1e-6f) << i;
}

TEST(MotionBasis, ColumnsAreOrthonormal) {
  Tensor matrix(DType::kF32, {9, 4});
  for (int64_t i = 0; i < matrix.size(); ++i) matrix.data<float>()[i] = static_cast<float>((i * 37) % 23) - 11;
  const Tensor basis = motion_basis(matrix);
  for (int64_t a = 0; a < 4; ++a) {
    for (int64_t b = 0; b < 4; ++b) {
      double dot = 0;
      for (int64_t row = 0; row < 9; ++row)
        dot += static_cast<double>(basis.data<float>()[row * 4 + a]) *
               static_cast<double>(basis.data<float>()[row * 4 + b]);
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-6);  // of nine products of float32 values
    }
  }
}

}  // namespace
}  // namespace zoetrope::wan
