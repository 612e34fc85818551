#include "models/wan/vae/vae_pixels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/wan/vae/vae_test_util.h"
#include "tensor/half.h"

namespace zoetrope::wan {
namespace {

float at(const TensorView& x, int64_t i, int64_t j, int64_t c) {
  return x.data<float>()[i * x.stride(0) + j * x.stride(1) + c * x.stride(2)];
}

// wan.md section 4.3: channel c·4 + dx·2 + dy is channel c of the pixel (2y + dy, 2x + dx). A row and a column that
// make no patch are left out.
TEST(VaePixels, ColumnsOfAPatchAreTheSlowerChannels) {
  ThreadTeam team(2);
  const Tensor stored = random_tensor({3, 5, 7}, 1);
  const TensorView picture = stored.view().permute({1, 2, 0});  // [H, W, C], channels farthest apart
  const Tensor values(DType::kF32, {2, 3, 12});
  load_pixels(team, picture, 2, values);
  for (int64_t y = 0; y < 4; ++y) {
    for (int64_t x = 0; x < 6; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        EXPECT_EQ(at(values, y / 2, x / 2, c * 4 + x % 2 * 2 + y % 2), at(picture, y, x, c));
      }
    }
  }
  const Tensor back(DType::kF32, {4, 6, 3});
  store_pixels(team, values, 2, back);
  const TensorView whole = picture.slice(0, 0, 4).slice(1, 0, 6);
  EXPECT_EQ(difference(back, whole).max_abs, 0);
}

TEST(VaePixels, AreRoundedInAndClampedOut) {
  ThreadTeam team(1);
  const Tensor picture(DType::kF32, {1, 2, 3}), out(DType::kF32, {1, 2, 3});
  const float given[] = {-1.5f, -1.0f, 0.1f, 0.999999f, 1.25f, 7.0f};
  std::copy(std::begin(given), std::end(given), picture.data<float>());
  const Tensor values(DType::kBF16, {1, 2, 3});
  load_pixels(team, picture, 1, values);
  store_pixels(team, values, 1, out);
  for (int64_t i = 0; i < 6; ++i) {
    const float rounded = to_float(to_bfloat16(given[i]));
    EXPECT_EQ(values.data<BFloat16>()[i].bits, to_bfloat16(given[i]).bits);
    EXPECT_EQ(out.data<float>()[i], std::clamp(rounded, -1.0f, 1.0f));
  }
}

}  // namespace
}  // namespace zoetrope::wan
