#include "models/wan/vae/preview_latents.h"

#include <gtest/gtest.h>

#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

TEST(PreviewLatents, SidesHaveAtMost256Pixels) {
  const VaeConfig config = small_config();
  const int64_t most = 256 / config.spatial_factor();  // cells
  EXPECT_EQ(preview_cells(config, 8, 8), 1);
  EXPECT_EQ(preview_cells(config, most, 20), 1);
  EXPECT_EQ(preview_cells(config, 20, most + 1), 2);
  EXPECT_EQ(preview_cells(config, 2 * most, 20), 2);
  EXPECT_EQ(preview_cells(config, 60, 3 * most + 1), 4);
}

TEST(PreviewLatents, LongClipsShowFramesFromTheFirstToTheLast) {
  EXPECT_EQ(preview_frames(1), 1);
  EXPECT_EQ(preview_frames(24), 24);
  EXPECT_EQ(preview_frames(100), 24);
  const VaeConfig config = small_config();
  Tensor latents(DType::kF32, {1, 1, 100, 1, 1});
  for (int64_t t = 0; t < 100; ++t) latents.data<float>()[t] = static_cast<float>(t);
  const Tensor none(DType::kF32, latents.shape());
  const Tensor small = preview_latents(config, latents, none, 1);
  ASSERT_EQ(small.shape(), (Shape{1, 1, 24, 1, 1}));
  EXPECT_EQ(small.data<float>()[0], 0);
  EXPECT_EQ(small.data<float>()[23], 99);
  for (int64_t f = 1; f < 24; ++f) EXPECT_NEAR(small.data<float>()[f] - small.data<float>()[f - 1], 4.5, 0.6);
}

TEST(PreviewLatents, AveragesOfWhatTheVelocityLeadsTo) {
  const VaeConfig config = small_config();
  const int64_t most = 256 / config.spatial_factor();
  const int64_t height = 35, width = 2 * most;  // two by two cells, the last row alone
  const Tensor latents = random_tensor({1, 3, 2, height, width}, 1);
  const Tensor velocity = random_tensor({1, 3, 2, height, width}, 2);
  const Tensor small = preview_latents(config, latents, velocity, 0.25);
  ASSERT_EQ(small.shape(), (Shape{1, 3, 2, 18, most}));
  const auto expected = [&](int64_t plane, int64_t y, int64_t x) {
    double sum = 0;
    int count = 0;
    for (int64_t i = 2 * y; i < std::min(2 * y + 2, height); ++i) {
      for (int64_t j = 2 * x; j < 2 * x + 2; ++j, ++count) {
        const int64_t at = (plane * height + i) * width + j;
        sum += latents.data<float>()[at] - 0.25 * velocity.data<float>()[at];
      }
    }
    return sum / count;
  };
  for (int64_t plane = 0; plane < 6; ++plane)
    for (int64_t y = 0; y < 18; ++y)
      for (int64_t x = 0; x < most; ++x)
        // Four sums of values below 8.
        EXPECT_NEAR(small.data<float>()[(plane * 18 + y) * most + x], expected(plane, y, x), 4 * 8 * 6e-8);
}

}  // namespace
}  // namespace zoetrope::wan
