#include "kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/test_folder.h"
#include "kernels/activation.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::close;
using test::GappedTensor;
using test::random_tensor;
using test::values;

const char* const kNames[] = {"reference", "avx2"};
const DType kDtypes[] = {DType::kF32, DType::kBF16};
const int64_t kWidths[] = {1, 7, 8, 9, 15, 16, 17, 100};

double tolerance(DType out) { return 4 * test::kUnitF32 + (out == DType::kBF16 ? test::kUnitBF16 : 0); }

// Distance in units of the last place of the float32 nearest to the exact value; below the smallest normal number a
// unit is that of the subnormals.
double ulps(float actual, double exact) {
  if (static_cast<double>(actual) == exact) return 0;
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 23);
}

template <typename Function>
float lane(Function function, float x) {
  float out[simd::kWidth];
  simd::store(out, function(simd::set(x)));
  return out[3];
}

// Every 509th float32 of both signs up to where float32 ends.
template <typename Visit>
void sweep(float most, Visit&& visit) {
  for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(most); bits += 509) {
    visit(std::bit_cast<float>(bits));
    visit(-std::bit_cast<float>(bits));
  }
}

TEST(VectorMath, ExpWithinTwoUlps) {
  double worst = 0;
  sweep(110.0f, [&](float x) {
    const double exact = std::exp(static_cast<double>(x));
    if (exact > static_cast<double>(std::numeric_limits<float>::max())) return;
    worst = std::max(worst, ulps(lane(simd::exp, x), exact));
  });
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(lane(simd::exp, 0.0f), 1.0f);
  EXPECT_EQ(lane(simd::exp, 89.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(lane(simd::exp, std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(lane(simd::exp, -std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(lane(simd::exp, std::numeric_limits<float>::quiet_NaN())));
}

// erf within a few units, and GELU-erf within what 1 + erf loses for negative arguments: an absolute error of x·ε.
// Numbers near the subnormals have fewer digits and are left out.
TEST(VectorMath, Erf) {
  double worst = 0, gelu = 0;
  sweep(20.0f, [&](float x) {
    const auto exact = static_cast<double>(x);
    if (std::abs(x) < 1e-35f) return;
    worst = std::max(worst, ulps(lane(simd::erf, x), std::erf(exact)));
    const double error = std::abs(lane(simd::gelu_erf, x) - activation_reference(Activation::kGeluErf, exact));
    gelu = std::max(gelu, error / std::abs(exact));
  });
  EXPECT_LE(worst, 8.0);
  EXPECT_LE(gelu, 4 * test::kUnitF32);
}

// x·sigmoid(z): a relative error of z grows by |z| in the exponential, and GELU's z has four roundings behind it; the
// exponential, sum and quotient add five u at most.
TEST(VectorMath, SiluAndGeluTanh) {
  double silu = 0, gelu = 0;
  sweep(80.0f, [&](float x) {
    const auto exact = static_cast<double>(x);
    const double s = exact / (1 + std::exp(-exact));
    if (std::abs(s) > 1e-37) silu = std::max(silu, std::abs(lane(simd::silu, x) / s - 1));
    const double z = 2 * std::sqrt(2 / 3.14159265358979323846) * (exact + 0.044715 * exact * exact * exact);
    const double g = exact / (1 + std::exp(-z));
    if (std::abs(g) > 1e-37) gelu = std::max(gelu, std::abs(lane(simd::gelu_tanh, x) / g - 1) / (5 + 4 * std::abs(z)));
  });
  EXPECT_LE(silu, 5 * test::kUnitF32);
  EXPECT_LE(gelu, test::kUnitF32);
  EXPECT_TRUE(std::isnan(lane(simd::gelu_tanh, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(lane(simd::silu, -200.0f), 0.0f);
  EXPECT_EQ(lane(simd::gelu_tanh, 1e6f), 1e6f);
}

TEST(Pointwise, Bf16StoreRoundsAsTheScalarOne) {
  sweep(std::numeric_limits<float>::infinity(), [&](float x) {
    BFloat16 out[simd::kWidth];
    simd::store(out, simd::set(x));
    ASSERT_EQ(out[5].bits, to_bfloat16(x).bits) << x;
  });
  for (uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x7f7fffffu, 0x7fc00001u, 0xff800001u, 0x00000001u}) {
    BFloat16 out[simd::kWidth];
    simd::store(out, simd::set(std::bit_cast<float>(bits)));
    EXPECT_EQ(out[0].bits, to_bfloat16(std::bit_cast<float>(bits)).bits) << bits;
  }
}

TEST(GatedAdd, WidthsDtypesAndGates) {
  for (int64_t d : kWidths) {
    for (DType in : kDtypes) {
      for (DType added : kDtypes) {
        for (int64_t per : {0, 1, 3}) {
          const DType to = d % 2 == 0 ? in : added;
          const GappedTensor x(in, {2, 3, d}, 1), a(added, {2, 3, d}, 2), out(to, {2, 3, d}, 3);
          const GappedTensor gate(DType::kF32, {2, std::max<int64_t>(1, per), d}, 4);
          test::fill_random(x, 1);
          test::fill_random(a, 2);
          test::fill_random(gate, 3);
          std::vector<double> expected = values(x);
          const std::vector<double> addend = values(a), gates = values(gate);
          for (int64_t row = 0; row < 6; ++row)
            for (int64_t i = 0; i < d; ++i) {
              const int64_t token = per == 3 ? row : row / 3;
              const auto at = static_cast<size_t>(row * d + i);
              expected[at] += addend[at] * (per == 0 ? 1 : gates[static_cast<size_t>(token * d + i)]);
            }
          for (const char* name : kNames) {
            Stream stream(2);
            gated_add(stream, x, a, per == 0 ? TensorView{} : gate.view(), out, name);
            EXPECT_TRUE(close(out, expected, tolerance(to))) << name << " d=" << d;
            EXPECT_TRUE(out.gaps_intact());
          }
          if (to != in) continue;
          Stream stream(2);
          gated_add(stream, x, a, per == 0 ? TensorView{} : gate.view(), x);
          EXPECT_TRUE(close(x, expected, tolerance(to)));
        }
      }
    }
  }
}

TEST(Activate, EveryKindWidthAndDtype) {
  for (Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf}) {
    for (int64_t n : {1, 7, 8, 9, 1000, 40000}) {
      for (DType in : kDtypes) {
        for (DType to : kDtypes) {
          const Tensor x = random_tensor(in, {n}, 1, 0, 2), out(to, {n});
          std::vector<double> expected = values(x);
          for (double& value : expected) value = activation_reference(activation, value);
          for (const char* name : kNames) {
            Stream stream(2);
            activate(stream, activation, x, out, name);
            EXPECT_TRUE(close(out, expected, tolerance(to))) << name << " n=" << n;
          }
        }
      }
    }
  }
}

// Values of the definitions, computed by hand to seven digits.
TEST(Activate, KnownValues) {
  EXPECT_NEAR(activation_reference(Activation::kSilu, 1), 0.7310586, 1e-7);
  EXPECT_NEAR(activation_reference(Activation::kGeluErf, 1), 0.8413447, 1e-7);
  EXPECT_NEAR(activation_reference(Activation::kGeluErf, -2), -0.0455003, 1e-7);
  EXPECT_NEAR(activation_reference(Activation::kGeluTanh, 1), 0.8411920, 1e-7);
  EXPECT_EQ(activation_reference(Activation::kNone, -3), -3);
}

TEST(Convert, DtypesAndStrides) {
  for (int64_t d : kWidths) {
    for (DType in : kDtypes) {
      for (DType to : kDtypes) {
        const GappedTensor x(in, {2, 3, d}, 3), out(to, {2, 3, d}, 1);
        test::fill_random(x, 1);
        for (const char* name : kNames) {
          Stream stream(2);
          convert(stream, x, out, name);
          if (to == DType::kF32 || in == to) EXPECT_EQ(values(out), values(x)) << name;
          else EXPECT_TRUE(close(out, values(x), test::kUnitBF16)) << name;
          EXPECT_TRUE(out.gaps_intact());
          // Axes exchanged on both sides: the same elements in another order of rows.
          test::fill_random(out.view(), 2);
          convert(stream, x.view().permute({1, 0, 2}), out.view().permute({1, 0, 2}), name);
          EXPECT_TRUE(close(out, values(x), test::kUnitBF16)) << name;
        }
      }
    }
  }
  const Tensor x = random_tensor(DType::kF32, {50001}, 1), half(DType::kBF16, {50001});
  Stream stream(2);
  convert(stream, x, half);
  for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(half.data<BFloat16>()[i].bits, to_bfloat16(x.data<float>()[i]).bits);
}

TEST(AffineChannels, WidthsAndDtypes) {
  for (int64_t channels : {1, 3, 8, 16, 17, 48}) {
    for (DType in : kDtypes) {
      for (DType to : kDtypes) {
        const GappedTensor x(in, {3, 4, channels}, 2), out(to, {3, 4, channels}, 1);
        test::fill_random(x, 1);
        const Tensor scale = random_tensor(DType::kF32, {channels}, 2),
                     offset = random_tensor(DType::kF32, {channels}, 3);
        std::vector<double> expected = values(x);
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto c = static_cast<size_t>(channels);
          expected[i] = expected[i] * values(scale)[i % c] + values(offset)[i % c];
        }
        for (const char* name : kNames) {
          Stream stream(2);
          affine_channels(stream, x, scale, offset, out, name);
          EXPECT_TRUE(close(out, expected, tolerance(to))) << name << " C=" << channels;
          EXPECT_TRUE(out.gaps_intact());
        }
      }
    }
  }
}

// Elements are independent, so the bits are those of one thread whatever the team; and the one thread's are right.
TEST(Pointwise, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor(DType::kF32, {2, 701, 50}, 1), a = random_tensor(DType::kF32, {2, 701, 50}, 2);
  const Tensor gate = random_tensor(DType::kF32, {2, 1, 50}, 3), channel = random_tensor(DType::kF32, {50}, 4);
  const Tensor out(DType::kF32, {2, 701, 50});
  const std::function<void(Stream&, const char*)> ops[] = {
      [&](Stream& stream, const char* name) { gated_add(stream, x, a, gate, out, name); },
      [&](Stream& stream, const char* name) { activate(stream, Activation::kGeluTanh, x, out, name); },
      [&](Stream& stream, const char* name) { convert(stream, x, out, name); },
      [&](Stream& stream, const char* name) { affine_channels(stream, x, channel, channel, out, name); },
  };
  for (const auto& op : ops) {
    std::vector<double> one;
    for (const int threads : {1, 2, 3, 5}) {
      Stream stream(threads);
      op(stream, "avx2");
      if (threads == 1) {
        one = values(out);
        op(stream, "reference");
        EXPECT_TRUE(close(one, values(out), tolerance(DType::kF32)));
        continue;
      }
      EXPECT_EQ(values(out), one) << threads;
    }
  }
}

TEST(Pointwise, PerturbedResultFailsAndRefusals) {
  const Tensor x = random_tensor(DType::kF32, {1, 4, 16}, 1), out(DType::kF32, {1, 4, 16});
  Stream stream(1);
  activate(stream, Activation::kSilu, x, out);
  std::vector<double> expected = values(x);
  for (double& value : expected) value = activation_reference(Activation::kSilu, value);
  ASSERT_TRUE(close(out, expected, tolerance(DType::kF32)));
  out.data<float>()[9] += 1e-5f;
  EXPECT_FALSE(close(out, expected, tolerance(DType::kF32)));

  EXPECT_EQ(error_of([&] { activate(stream, Activation::kSilu, x, out, "fast"); }),
            "activate: there is no implementation 'fast'; there are: avx2, reference");
  EXPECT_EQ(error_of([&] { activate(stream, Activation::kSilu, x, out.view().slice(2, 0, 8)); }),
            "activate: [1, 4, 8] must be contiguous");
  EXPECT_EQ(error_of([&] {
              convert(stream, x, Tensor(DType::kI64, {1, 4, 16}));
            }),
            "convert: dtype I64, but F32 or BF16 is needed");
  EXPECT_NE(error_of([&] { gated_add(stream, x, x, out.view().slice(1, 0, 2), out); }).find("[B, 1, d] or [B, S, d]"),
            std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
