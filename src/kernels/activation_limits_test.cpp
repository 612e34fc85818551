// SiLU and GELU-tanh of infinities, of NaN and of what overflows on the way, through every op that ends in them and
// every implementation of each: +inf and NaN stay; of −inf SiLU ends in 0 and GELU-tanh in NaN, as in PyTorch; what is
// finite ends in 0 on that side. What they are between is tested with each op.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "kernels/activation.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/cpu_features.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/thin_gemm.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Limit {
  double x, silu, gelu_tanh;
};
// All are exact in bf16. From −104 on e^x is not a float32; −1.5·2^127 and the like overflow in x·log₂e, and in x³ with
// −2^50.
const Limit kLimits[] = {{kInfinity, kInfinity, kInfinity},
                         {-kInfinity, 0, kNaN},
                         {kNaN, kNaN, kNaN},
                         {0x1.8p127, 0x1.8p127, 0x1.8p127},
                         {-0x1.8p127, 0, 0},
                         {-0x1p50, 0, 0},
                         {-104, 0, 0},
                         {-96, 0, 0},
                         {-88, 0, 0},
                         {96, 96, 96},
                         {0, 0, 0},
                         {-1, -0.26894142137, -0.15880800939}};
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh};
const char* name_of(Activation activation) { return activation == Activation::kSilu ? "silu" : "gelu_tanh"; }

constexpr int64_t kColumns = 70;  // vectors of every width, and a tail

const Limit& limit_of(int64_t column) { return kLimits[static_cast<size_t>(column) % std::size(kLimits)]; }

// [kColumns]
Tensor limits(DType dtype) {
  Tensor x(dtype, {kColumns});
  for (int64_t i = 0; i < kColumns; ++i) test::put(x, i, limit_of(i).x);
  return x;
}

void expect_limit(Activation activation, const Limit& limit, double value, double relative) {
  const double limiting = activation == Activation::kSilu ? limit.silu : limit.gelu_tanh;
  SCOPED_TRACE(testing::Message() << name_of(activation) << "(" << limit.x << ")");
  if (std::isnan(limiting)) EXPECT_TRUE(std::isnan(value)) << value;
  else if (std::isinf(limiting)) EXPECT_EQ(value, limiting);
  else EXPECT_LE(std::abs(value - limiting), relative * std::abs(limiting) + 1e-35) << value;
}

// A sigmoid is good to five units, GELU-tanh's to four more for each e-fold of its exponential: 1.7 of them at −1.
double tolerance(Activation activation, DType out) {
  const double units = activation == Activation::kSilu ? 8 : 12;
  return units * test::kUnitF32 + (out == DType::kBF16 ? test::kUnitBF16 : 0);
}

// out [..., kColumns].
void expect_limits(Activation activation, const TensorView& out) {
  const std::vector<double> values = test::values(out);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % kColumns;
    SCOPED_TRACE(testing::Message() << "column " << column);
    expect_limit(activation, limit_of(column), values[i], tolerance(activation, out.dtype()));
  }
}

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};

TEST(ActivationLimits, Definition) {
  for (const Activation activation : kActivations) {
    for (const Limit& limit : kLimits)
      expect_limit(activation, limit, activation_reference(activation, limit.x), 1e-10);
  }
}

TEST(ActivationLimits, Activate) {
  for (const Activation activation : kActivations) {
    for (const DType dtype : kDtypes) {
      for (const char* name : {"avx2", "reference"}) {
        SCOPED_TRACE(testing::Message() << name << " " << dtype_name(dtype));
        const Tensor x = limits(dtype), out(dtype, {kColumns});
        Stream stream(1);
        activate(stream, activation, x, out, name);
        expect_limits(activation, out);
      }
    }
  }
}

void expect_packed_gemm_limits(Activation activation) {
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
          SCOPED_TRACE(testing::Message() << packed_layout_name(matrix) << " '" << name << "' " << dtype_name(to));
          const Tensor out(to, {7, kColumns});
          PackedGemm g;
          g.x = x;
          g.w = matrix;
          g.bias = bias;
          g.activation = activation;
          g.out = out;
          g.implementation = name;
          Stream stream(1);
          packed_gemm(stream, g);
          expect_limits(activation, out);
        }
      }
    }
  }
}
TEST(ActivationLimits, PackedGemm) {
  for (const Activation activation : kActivations) expect_packed_gemm_limits(activation);
}

void expect_thin_gemm_limits(Activation activation) {
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
        const ThinProduct one{w, {}, out, bias, activation};
        Stream stream(1);
        thin_gemm(stream, {.x = x, .products = {&one, 1}, .weight_precision = dtype, .implementation = name});
        expect_limits(activation, out);
      }
    }
  }
}
TEST(ActivationLimits, ThinGemm) {
  for (const Activation activation : kActivations) expect_thin_gemm_limits(activation);
}

// Pixels of ones, which the norm leaves as they are, times a gamma of limits.
TEST(ActivationLimits, FrameConvolution) {
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
      expect_limits(Activation::kSilu, normed);
    }
  }
}

}  // namespace
}  // namespace zoetrope::kernels
