#include "pipeline/stages/guidance.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/half.h"

namespace zoetrope::pipeline {
namespace {

TEST(Guidance, IsAffineInFloat32) {
  std::vector<float> out(2);
  guide(std::vector<float>{1, 2}, std::vector<float>{0.5f, 4}, 5, DType::kF32, out);
  EXPECT_EQ(out, (std::vector<float>{3, -6}));
}

TEST(Guidance, RoundsEachOperationInBf16) {
  // 1.0078125 − 1 = 2^-7 is exact; ·5 = 0.0390625 is exact; 1 + it needs 9 bits of fraction and rounds to 1.0390625.
  const float c = 1.0078125f;
  std::vector<float> out(1);
  guide(std::vector<float>{c}, std::vector<float>{1.0f}, 5, DType::kBF16, out);
  EXPECT_EQ(out[0], to_float(to_bfloat16(1.0390625f)));
  // The product alone rounds: 3.1·2^-7 in bf16 is not 3.1·2^-7 in float32.
  guide(std::vector<float>{c}, std::vector<float>{1.0f}, 3.1, DType::kBF16, out);
  EXPECT_EQ(out[0], to_float(to_bfloat16(1.0f + to_float(to_bfloat16(3.1f * 0.0078125f)))));
}

}  // namespace
}  // namespace zoetrope::pipeline
