#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_folder.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

TEST(Rope, AxesOfAHead) {
  const auto widths = [](int64_t head_dim) {
    const RopeAxes axes = rope_axes(head_dim);
    return std::vector<int64_t>{axes.t, axes.h, axes.w};
  };
  EXPECT_EQ(widths(128), (std::vector<int64_t>{44, 42, 42}));
  EXPECT_EQ(widths(12), (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(widths(16), (std::vector<int64_t>{8, 4, 4}));
  EXPECT_EQ(widths(2), (std::vector<int64_t>{2, 0, 0}));
  EXPECT_NE(error_of([] { rope_axes(13); }).find("head_dim is 13"), std::string::npos);
}

// The check values of the model's description: D = 128, token (t, h, w) = (5, 2, 3), to one unit of their last digit.
TEST(Rope, CheckValues) {
  constexpr double kLastDigit = 1e-6;
  constexpr int64_t kFrames = 6, kHeight = 4, kWidth = 5;
  const int64_t token = (5 * kHeight + 2) * kWidth + 3;
  const RopeTable table = make_rope_table(128, kFrames, kHeight, kWidth, {token, token + 1});
  const float* c = table.cos.data<float>();
  const float* s = table.sin.data<float>();
  EXPECT_NEAR(c[1], -0.989057, kLastDigit);
  EXPECT_NEAR(s[1], -0.147533, kLastDigit);
  EXPECT_NEAR(c[22 + 1], 0.277223, kLastDigit);
  EXPECT_NEAR(s[22 + 1], 0.960806, kLastDigit);
  EXPECT_NEAR(c[22 + 21 + 10], 0.999302, kLastDigit);
  EXPECT_NEAR(s[22 + 21 + 10], 0.037347, kLastDigit);
  EXPECT_EQ(c[0], static_cast<float>(std::cos(5.0)));
  EXPECT_EQ(s[22], static_cast<float>(std::sin(2.0)));
}

// float64 angles rounded once: the formula token by token gives the same bits (pow of the same arguments), and a
// float32 angle would not.
TEST(Rope, WholeGridFromTheFormula) {
  const int64_t head_dim = 20, frames = 3, height = 2, width = 7;
  const RopeAxes axes = rope_axes(head_dim);
  const RopeTable table = make_rope_table(head_dim, frames, height, width, {0, frames * height * width}, 500.0);
  int64_t at = 0;
  for (int64_t t = 0; t < frames; ++t)
    for (int64_t h = 0; h < height; ++h)
      for (int64_t w = 0; w < width; ++w)
        for (const auto& [extent, position] : {std::pair{axes.t, t}, std::pair{axes.h, h}, std::pair{axes.w, w}}) {
          for (int64_t k = 0; k < extent / 2; ++k, ++at) {
            const double angle = static_cast<double>(position) *
                                 std::pow(500.0, -2.0 * static_cast<double>(k) / static_cast<double>(extent));
            ASSERT_EQ(table.cos.data<float>()[at], static_cast<float>(std::cos(angle)));
            ASSERT_EQ(table.sin.data<float>()[at], static_cast<float>(std::sin(angle)));
          }
        }
  EXPECT_EQ(at, table.cos.size());
}

TEST(Rope, AShardIsItsPieceOfTheWhole) {
  const RopeTable whole = make_rope_table(12, 3, 4, 5, {0, 60});
  for (const IndexRange range : {IndexRange{0, 1}, IndexRange{7, 23}, IndexRange{59, 60}, IndexRange{10, 10}}) {
    const RopeTable part = make_rope_table(12, 3, 4, 5, range);
    ASSERT_EQ(part.cos.shape(), (Shape{range.size(), 6}));
    for (int64_t i = 0; i < part.cos.size(); ++i) {
      ASSERT_EQ(part.cos.data<float>()[i], whole.cos.data<float>()[range.begin * 6 + i]);
      ASSERT_EQ(part.sin.data<float>()[i], whole.sin.data<float>()[range.begin * 6 + i]);
    }
  }
}

}  // namespace
}  // namespace zoetrope::kernels
