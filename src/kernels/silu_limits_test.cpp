// SiLU of infinities, of NaN and of what overflows on the way, through every op that ends in it and every
// implementation of each: +inf stays, −inf ends in 0, NaN stays. What SiLU is between is tested with each op.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/test_util.h"

namespace zoetrope::kernels {
namespace {

using test::error_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Limit {
  double x, silu;
};
// All are exact in bf16. From −104 on e^x is no float32; −1.5·2^127 and the like overflow in x·log₂e.
const Limit kLimits[] = {{kInfinity, kInfinity},
                         {-kInfinity, 0},
                         {kNaN, kNaN},
                         {0x1.8p127, 0x1.8p127},
                         {-0x1.8p127, 0},
                         {-0x1p50, 0},
                         {-104, 0},
                         {-96, 0},
                         {-88, 0},
                         {96, 96},
                         {0, 0},
                         {-1, -0.26894142137}};
constexpr int64_t kColumns = 70;  // vectors of every width, and a tail

const Limit& limit_of(int64_t column) { return kLimits[static_cast<size_t>(column) % std::size(kLimits)]; }

// [kColumns]
Tensor limits(DType dtype) {
  Tensor x(dtype, {kColumns});
  for (int64_t i = 0; i < kColumns; ++i) test::put(x, i, limit_of(i).x);
  return x;
}

// out [..., kColumns], where `relative` is what an op may be off by.
void expect_limits(const TensorView& out, double relative) {
  const std::vector<double> values = test::values(out);
  for (size_t i = 0; i < values.size(); ++i) {
    const Limit& limit = limit_of(static_cast<int64_t>(i) % kColumns);
    SCOPED_TRACE(testing::Message() << "silu(" << limit.x << ") in column " << static_cast<int64_t>(i) % kColumns);
    if (std::isnan(limit.silu)) EXPECT_TRUE(std::isnan(values[i])) << values[i];
    else if (std::isinf(limit.silu)) EXPECT_EQ(values[i], limit.silu);
    else EXPECT_LE(std::abs(values[i] - limit.silu), relative * std::abs(limit.silu) + 1e-35) << values[i];
  }
}

double tolerance(DType out) { return 8 * test::kUnitF32 + (out == DType::kBF16 ? test::kUnitBF16 : 0); }

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};

TEST(SiluLimits, Definition) {
  for (const Limit& limit : kLimits) {
    const double y = activation_reference(Activation::kSilu, limit.x);
    if (std::isnan(limit.silu)) EXPECT_TRUE(std::isnan(y));
    else if (std::isinf(limit.silu)) EXPECT_EQ(y, limit.silu);
    else EXPECT_NEAR(y, limit.silu, 1e-10 * std::abs(limit.silu) + 1e-35);
  }
}

TEST(SiluLimits, Activate) {
  for (const DType dtype : kDtypes) {
    for (const char* name : {"avx2", "reference"}) {
      SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype));
      const Tensor x = limits(dtype), out(dtype, {kColumns});
      Stream stream(1);
      activate(stream, Activation::kSilu, x, out, name);
      expect_limits(out, tolerance(dtype));
    }
  }
}

// Rows of ones, which their norm leaves as they are, times a gamma of limits.
TEST(SiluLimits, ChannelNorm) {
  for (const DType dtype : kDtypes) {
    for (const char* name : {"avx2", "reference"}) {
      SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype));
      const Tensor x = test::random_tensor(dtype, {3, kColumns}, 1, 1, 0), out(dtype, {3, kColumns});
      Stream stream(1);
      channel_norm(stream, {x, limits(DType::kF32), true, out, name});
      expect_limits(out, tolerance(dtype));
    }
  }
}

// Products of zeros, and a bias of limits.
TEST(SiluLimits, Gemm) {
  for (const DType in : kDtypes) {
    for (const DType to : kDtypes) {
      const Tensor x(in, {5, 24}), w = test::random_tensor(in, {kColumns, 24}, 1), bias = limits(DType::kF32);
      int ran = 0;
      for (const char* name : {"reference", "onednn", "f32_via_convert", "onednn_bf16"}) {
        const Tensor out(to, {5, kColumns});
        Stream stream(1);
        const std::string error = error_of([&] { gemm(stream, {x, w, bias, Activation::kSilu, out, name}); });
        if (!error.empty()) continue;  // not of these dtypes, or not of this machine
        SCOPED_TRACE(testing::Message() << name << " " << dtype_name(in) << " " << dtype_name(to));
        expect_limits(out, tolerance(to));
        ++ran;
      }
      EXPECT_GE(ran, 2);
    }
  }
}

TEST(SiluLimits, PackedGemm) {
  for (const DType dtype : kDtypes) {
    for (const DType to : kDtypes) {
      for (const PackedLayout layout : packed_layouts(dtype)) {
        const Tensor w = test::random_tensor(dtype, {kColumns, 24}, 1);
        const TensorView stored = w;
        PackedMatrix matrix;
        matrix.dtype = dtype;
        matrix.layout = layout;
        matrix.n = kColumns;
        matrix.k = 24;
        Tensor memory(DType::kU8, {static_cast<int64_t>(packed_bytes(matrix))});
        matrix.data = memory.data<std::byte>();
        pack({&stored, 1}, matrix, memory.data<std::byte>());
        const Tensor x(operand_dtype(matrix), {7, 24}), bias = limits(dtype);
        for (const char* name : {"", "reference"}) {
          SCOPED_TRACE(testing::Message() << packed_form(matrix) << " '" << name << "' " << dtype_name(to));
          const Tensor out(to, {7, kColumns});
          PackedGemm g;
          g.x = x;
          g.w = matrix;
          g.bias = bias;
          g.activation = Activation::kSilu;
          g.out = out;
          g.implementation = name;
          Stream stream(1);
          packed_gemm(stream, g);
          expect_limits(out, tolerance(to));
        }
      }
    }
  }
}

TEST(SiluLimits, ThinGemm) {
  std::vector<std::string> names{"reference", "avx2"};
  if (cpu_features().avx512) names.emplace_back("avx512");
  if (cpu_features().amx_bf16) names.emplace_back("amx");
  for (const DType dtype : kDtypes) {
    for (const DType to : kDtypes) {
      for (const std::string& name : names) {
        if (name == "amx" && dtype == DType::kF32) continue;
        SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype) << " " << dtype_name(to));
        const Tensor x(dtype, {35, 32}), w = test::random_tensor(dtype, {kColumns, 32}, 1), out(to, {35, kColumns});
        const Tensor bias = limits(DType::kF32);
        const ThinProduct one{w, {}, out, bias, Activation::kSilu};
        Stream stream(1);
        thin_gemm(stream, {.x = x, .products = {&one, 1}, .weight_precision = dtype, .implementation = name});
        expect_limits(out, tolerance(to));
      }
    }
  }
}

// Pixels of ones, which the norm leaves as they are, times a gamma of limits.
TEST(SiluLimits, FrameConvolution) {
  std::vector<std::string> names{"reference", "avx2"};
  if (cpu_features().avx512) names.emplace_back("avx512");
  if (cpu_features().avx512_bf16) names.emplace_back("avx512_bf16");
  if (cpu_features().amx_bf16) names.emplace_back("amx_bf16");
  for (const DType dtype : kDtypes) {
    for (const std::string& name : names) {
      if (name.ends_with("_bf16") && dtype == DType::kF32) continue;
      SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype));
      FrameConvProblem p;
      p.in_channels = 2;
      p.out_channels = kColumns;
      p.frames = 1;
      p.kernel = {1, 1};
      p.dtype = dtype;
      p.implementation = name;
      const Tensor weight = test::random_tensor(DType::kF32, {kColumns, 2, 1, 1, 1}, 1, 0.5, 0);
      const Tensor x = test::random_tensor(dtype, {2, 9, 2}, 1, 1, 0), normed(dtype, {2, 9, kColumns});
      const Tensor gamma = limits(DType::kF32);
      FrameConvOutput out;
      out.normed = normed;
      out.gamma = gamma;
      out.silu = true;
      Stream stream(1);
      const TensorView inputs[] = {x};
      FrameConvolution(p, weight, {}).run(stream, inputs, out);
      expect_limits(normed, tolerance(dtype));
    }
  }
}

}  // namespace
}  // namespace zoetrope::kernels
