#include "models/sampling/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/project_folders.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::sampling {
namespace {

// The reference's vector log and cos are approximations; exact ones differ from them by up to 1.4e-6 (golden README).
constexpr double kTolerance = 2e-6;

class RandnTest : public testing::TestWithParam<uint64_t> {
 protected:
  std::shared_ptr<const io::TensorFile> golden_ =
      io::TensorFile::open(std::string(kGoldenFolder) + "/rng/randn.safetensors");
  std::string name(const std::string& rest) const { return "seed" + std::to_string(GetParam()) + "." + rest; }
};

void expect_near(const TensorView& expected, const std::vector<float>& drawn, const std::string& name) {
  ASSERT_EQ(expected.size(), static_cast<int64_t>(drawn.size())) << name;
  for (size_t i = 0; i < drawn.size(); ++i) EXPECT_NEAR(drawn[i], expected.data<float>()[i], kTolerance) << name << i;
}

TEST_P(RandnTest, Float32EqualsTheReference) {
  for (const char* shape : {"1", "7", "15", "16", "17", "1000", "1x16x3x8x10"}) {
    const TensorView expected = golden_->tensor(name(std::string(shape) + ".f32"));
    std::vector<float> drawn(static_cast<size_t>(expected.size()));
    TorchGenerator(GetParam()).randn(drawn);
    expect_near(expected, drawn, shape);
  }
}

TEST_P(RandnTest, BFloat16EqualsTheReference) {
  for (const char* shape : {"1", "7", "15", "16", "17", "1000", "1x16x3x8x10"}) {
    const TensorView expected = golden_->tensor(name(std::string(shape) + ".bf16"));
    std::vector<BFloat16> drawn(static_cast<size_t>(expected.size()));
    TorchGenerator(GetParam()).randn(std::span<BFloat16>(drawn));
    for (size_t i = 0; i < drawn.size(); ++i) {
      // Equal, or neighbours where the float32 values straddle a tie: one step, at most 2^-7 relative.
      const float read = to_float(drawn[i]), recorded = to_float(expected.data<BFloat16>()[i]);
      EXPECT_LE(std::abs(read - recorded), std::abs(recorded) / 128) << shape << " " << i;
    }
  }
}

TEST_P(RandnTest, SecondDrawContinuesTheStream) {
  TorchGenerator generator(GetParam());
  for (const char* which : {"first", "second"}) {
    const TensorView expected = golden_->tensor(name(std::string("second_draw.") + which));
    std::vector<float> drawn(static_cast<size_t>(expected.size()));
    generator.randn(drawn);
    expect_near(expected, drawn, which);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandnTest, testing::Values(0, 42, 1099511627779));

// torch.manual_seed(0); torch.randn(16): values widely published.
TEST(Randn, SeedZero) {
  const float expected[16] = {-1.1258f, -1.1524f, -0.2506f, -0.4339f, 0.8487f, 0.6920f, -0.3160f, -2.1152f,
                              0.3223f,  -1.2633f, 0.3500f,  0.3081f,  0.1198f, 1.2377f, 1.1168f,  -0.2473f};
  std::vector<float> drawn(16);
  TorchGenerator(0).randn(drawn);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(drawn[i], expected[i], 5e-5 + kTolerance);  // four printed decimals
}

TEST(Randn, SpareSineStaysForTheNextSmallDraw) {
  std::vector<float> at_once(6), parts(6);
  TorchGenerator(3).randn(at_once);
  TorchGenerator generator(3);
  generator.randn(std::span(parts).first(3));
  generator.randn(std::span(parts).subspan(3, 1));
  generator.randn(std::span(parts).last(2));
  EXPECT_EQ(parts, at_once);
}

TEST(Randn, IsNormal) {
  std::vector<float> drawn(1 << 20);
  TorchGenerator(5).randn(drawn);
  double mean = 0, square = 0;
  for (const float value : drawn) {
    mean += value;
    square += static_cast<double>(value) * value;
  }
  const double n = static_cast<double>(drawn.size());
  EXPECT_LT(std::abs(mean / n), 5 / std::sqrt(n));              // 5 σ of a mean
  EXPECT_LT(std::abs(square / n - 1), 5 * std::sqrt(2.0 / n));  // 5 σ of a variance
}

}  // namespace
}  // namespace zoetrope::sampling
