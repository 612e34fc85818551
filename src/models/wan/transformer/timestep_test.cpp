#include "models/wan/transformer/timestep.h"

#include <gtest/gtest.h>

#include <array>

namespace zoetrope::wan {
namespace {

TEST(Timestep, MatchesTheReferenceAt999) {
  const Tensor out(DType::kF32, {2, 256});
  const std::array<float, 2> timesteps{0.0f, 999.0f};
  timestep_sinusoid(timesteps, out);
  const float* zero = out.data<float>();
  const float* last = zero + 256;
  for (int k = 0; k < 128; ++k) {
    EXPECT_EQ(zero[k], 1.0f);
    EXPECT_EQ(zero[128 + k], 0.0f);
  }
  // wan.md section 2.3 gives these from exact arithmetic. Rounded to float32, f is off by up to 2^-25 of its value,
  // which 999 enlarges, and the angle, between 512 and 1024, by up to 2^-15; the last digit printed is small compared
  // with them.
  constexpr float kAngle = 999.0f / (1 << 25) + 1.0f / (1 << 15) + 1e-6f;
  EXPECT_NEAR(last[0], 0.999650f, kAngle);
  EXPECT_NEAR(last[1], 0.963782f, kAngle);
  EXPECT_NEAR(last[128], -0.026461f, kAngle);
  EXPECT_NEAR(last[129], -0.266690f, kAngle);
}

}  // namespace
}  // namespace zoetrope::wan
