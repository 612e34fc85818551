#include "models/wan/vae/latents.h"

#include <gtest/gtest.h>

#include "zoetrope/error.h"

#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

TEST(Latents, NormaliseByTheReciprocalInFloat32) {
  const VaeConfig config = small_config();
  const Tensor x = random_tensor({3, 2, 3, 4}, 1);
  Tensor y(DType::kF32, {1, 3, 2, 3, 4});
  normalize_latents(config, x, y);
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto channel = static_cast<size_t>(i / 24);
    const float reciprocal = 1.0f / config.latents_std[channel];
    EXPECT_EQ(y.data<float>()[i], (x.data<float>()[i] - config.latents_mean[channel]) * reciprocal);
  }
  Tensor back(DType::kF32, x.shape());
  denormalize_latents(config, y, back);
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto channel = static_cast<size_t>(i / 24);
    const float reciprocal = 1.0f / config.latents_std[channel];
    EXPECT_EQ(back.data<float>()[i], y.data<float>()[i] / reciprocal + config.latents_mean[channel]);
    // There and back: four roundings of values below 4.
    EXPECT_NEAR(back.data<float>()[i], x.data<float>()[i], 4 * 4 * 6e-8);
  }
}

TEST(Latents, TakeAnyStridesAndWorkInPlace) {
  const VaeConfig config = small_config();
  const Tensor x = random_tensor({2, 3, 4, 3}, 2);  // channels last
  const TensorView channels_first = x.view().permute({3, 0, 1, 2});
  Tensor y(DType::kF32, channels_first.shape());
  normalize_latents(config, channels_first, y);
  normalize_latents(config, channels_first, channels_first);
  EXPECT_EQ(difference(channels_first, y).max_abs, 0);
}

TEST(Latents, ModeIsTheFirstHalfOfTheChannels) {
  const Tensor moments(DType::kF32, {1, 6, 2, 3, 4});
  EXPECT_EQ(mode(moments).shape(), (Shape{1, 3, 2, 3, 4}));
  EXPECT_EQ(mode(moments).raw(), moments.view().raw());
  EXPECT_EQ(mode(moments.view().select(0, 0)).shape(), (Shape{3, 2, 3, 4}));
}

TEST(Latents, RefuseAnotherNumberOfChannels) {
  const Tensor x(DType::kF32, {4, 1, 2, 2});
  EXPECT_THROW(normalize_latents(small_config(), x, x), Error);
  const Tensor flat(DType::kF32, {3, 2, 2});
  EXPECT_THROW(normalize_latents(small_config(), flat, flat), Error);
}

}  // namespace
}  // namespace zoetrope::wan
