#include "kernels/gemm/thin_gemm.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "base/test_folder.h"
#include "kernels/activation.h"
#include "kernels/cpu_features.h"
#include "kernels/testing.h"

namespace zoetrope::kernels {
namespace {

using test::fill_random;
using test::GappedTensor;

// `narrow`: x and weights are BF16, which is all that AMX multiplies.
std::vector<std::string> implementations(bool narrow) {
  std::vector<std::string> names{"reference"};
  if (cpu_features().avx2) names.push_back("avx2");
  if (cpu_features().avx512) names.push_back("avx512");
  if (cpu_features().amx_bf16 && narrow) names.push_back("amx");
  return names;
}

// Weights at any address, with a gap between their rows.
class ShiftedWeights {
 public:
  ShiftedWeights(DType dtype, int64_t n, int64_t k, int64_t gap, size_t shift, uint64_t seed) {
    const GappedTensor values(dtype, {n, k}, gap);
    fill_random(values, seed, 0, 1 / std::sqrt(static_cast<double>(k)));
    const size_t bytes = static_cast<size_t>(n * (k + gap)) * dtype_size(dtype);
    memory_.resize(bytes + 64 + shift);
    std::byte* at = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) + shift;
    std::memcpy(at, values.view().raw(), bytes - static_cast<size_t>(gap) * dtype_size(dtype));
    view_ = TensorView(at, dtype, {n, k}, {k + gap, 1});
    values_ = test::values(values);
  }
  const TensorView& view() const { return view_; }
  std::vector<double> values(DType precision) const {
    std::vector<double> all = values_;
    if (precision == DType::kBF16)
      for (double& value : all) value = to_float(to_bfloat16(static_cast<float>(value)));
    return all;
  }

 private:
  std::vector<std::byte> memory_;
  TensorView view_;
  std::vector<double> values_;
};

struct Case {
  int64_t m, n, k;
  DType x, w, precision, out;
  size_t shift = 0;
  bool gated = false;
};

std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, const Case& c) {
  std::vector<double> out;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < c.k; ++l)
        sum += x[static_cast<size_t>(i * c.k + l)] * w[static_cast<size_t>(j * c.k + l)];
      out.push_back(sum);
    }
  return out;
}

// A float32 sum of K terms of random sign walks: at most u·√K of its size; the gate multiplies two such and adds the
// few u of GELU; a bf16 result is one rounding more.
double tolerance(const Case& c) {
  const double sum = test::kUnitF32 * (4 + std::sqrt(static_cast<double>(c.k)));
  return (c.gated ? 3 : 1) * sum + (c.out == DType::kBF16 ? test::kUnitBF16 : 0);
}

void check(const Case& c) {
  const GappedTensor x(c.x, {c.m, c.k}, 3), out(c.out, {c.m, c.n}, 5);
  fill_random(x, 1);
  const ShiftedWeights w(c.w, c.n, c.k, 1, c.shift, 2), gate(c.w, c.n, c.k, 1, c.shift, 3);
  std::vector<double> expected = product(test::values(x), w.values(c.precision), c);
  if (c.gated) {
    const std::vector<double> gates = product(test::values(x), gate.values(c.precision), c);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double g = gates[i];
      expected[i] *= 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
    }
  }
  const ThinProduct one{w.view(), c.gated ? gate.view() : TensorView(), out};
  for (const std::string& name : implementations(c.x == DType::kBF16 && c.w == DType::kBF16)) {
    for (int threads : {1, 3}) {
      SCOPED_TRACE(testing::Message() << name << " m=" << c.m << " n=" << c.n << " k=" << c.k << " shift=" << c.shift
                                      << " x " << dtype_name(c.x) << " w " << dtype_name(c.w) << " as "
                                      << dtype_name(c.precision) << (c.gated ? " gated" : ""));
      Stream stream(threads);
      fill_random(out, 9);
      thin_gemm(stream, {.x = x, .products = {&one, 1}, .weight_precision = c.precision, .implementation = name});
      EXPECT_TRUE(test::close(out.view(), expected, tolerance(c)));
      EXPECT_TRUE(out.gaps_intact());
      if (name != "reference") {
        EXPECT_EQ(stream.scratch().reserved(),
                  std::max(size_t{1} << 20, thin_gemm_scratch_bytes(c.m, c.k, c.gated, threads)));
      }
    }
  }
}

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

TEST(ThinGemm, RowsRoundEveryTile) {
  for (int64_t m : {1, 2, 5, 6, 7, 11, 12, 13, 23, 24, 25, 37}) check({m, 40, 72, kBF16, kBF16, kBF16, kBF16});
}

TEST(ThinGemm, ColumnsRoundEveryPanelAndBlock) {
  for (int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129}) {
    check({3, n, 40, kF32, kBF16, kF32, kF32});
  }
}

TEST(ThinGemm, TermsRoundEveryVectorAndPiece) {
  for (int64_t k : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 257}) {
    check({3, 33, k, kF32, kBF16, kBF16, kF32});
    check({3, 33, k, kF32, kF32, kF32, kF32});
  }
}

// AMX has other tiles: sixteen rows, thirty-two terms and columns, and copies of weights where tiles are not
// whole; few rows are cut otherwise than many, and of those 256 pass before the others.
TEST(ThinGemm, TilesOfMatrixUnits) {
  for (int64_t m : {15, 16, 17, 31, 32, 33, 47, 48, 49, 97, 113}) check({m, 33, 64, kBF16, kBF16, kBF16, kF32});
  for (int64_t k : {31, 32, 33, 511, 512, 513, 1056}) {
    for (int64_t n : {31, 32, 64, 65, 96}) check({3, n, k, kBF16, kBF16, kBF16, kF32, 1, true});
  }
  for (int64_t n : {63, 64, 65, 127, 128, 129, 192}) check({98, n, 40, kBF16, kBF16, kBF16, kBF16});
  for (int64_t k : {2047, 2048, 2049, 4128}) check({50, 33, k, kBF16, kBF16, kBF16, kF32, 1, true});
  check({290, 96, 4128, kBF16, kBF16, kBF16, kF32, 1, true});
  for (int64_t m : {255, 257, 290}) check({m, 65, 2080, kBF16, kBF16, kBF16, kF32});
}

TEST(ThinGemm, WeightsAtAnyAddress) {
  for (size_t shift : {1, 2, 3, 4, 31, 62}) {
    check({5, 33, 41, kBF16, kBF16, kBF16, kBF16, shift});
    check({5, 33, 41, kF32, kF32, kF32, kF32, shift});
  }
}

TEST(ThinGemm, EveryCombinationOfTypes) {
  for (DType x : {kF32, kBF16})
    for (DType w : {kF32, kBF16})
      for (DType precision : {kF32, kBF16})
        for (DType out : {kF32, kBF16})
          for (bool gated : {false, true}) check({7, 70, 300, x, w, precision, out, 2, gated});
}

TEST(ThinGemm, ManyRows) {
  check({97, 130, 40, kBF16, kBF16, kBF16, kF32, 0, true});
  for (DType x : {kF32, kBF16}) check({1030, 9, 20, x, kBF16, kBF16, kF32});  // more than a pass
}

// act(x·wᵀ + bias): a bias for every column of every block, and an activation behind it.
TEST(ThinGemm, BiasAndActivation) {
  for (const DType dtype : {kF32, kBF16}) {
    for (const int64_t n : {1, 15, 16, 17, 130}) {
      const Case c{35, n, 72, dtype, dtype, dtype, kF32};
      const Tensor x = test::random_tensor(dtype, {c.m, c.k}, 1), bias = test::random_tensor(kF32, {n}, 4);
      const ShiftedWeights w(dtype, n, c.k, 1, 2, 2);
      const std::vector<double> sums = product(test::values(x), w.values(dtype), c);
      for (const Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGeluErf}) {
        std::vector<double> expected;
        for (size_t i = 0; i < sums.size(); ++i) {
          const double biased = sums[i] + static_cast<double>(bias.data<float>()[i % static_cast<size_t>(n)]);
          expected.push_back(activation_reference(activation, biased));
        }
        for (const std::string& name : implementations(dtype == kBF16)) {
          const Tensor out(kF32, {c.m, n});
          const ThinProduct one{w.view(), {}, out, bias, activation};
          Stream stream(2);
          thin_gemm(stream, {.x = x, .products = {&one, 1}, .weight_precision = dtype, .implementation = name});
          EXPECT_TRUE(test::close(out.view(), expected, 2 * tolerance(c)))
              << name << " " << n << " " << dtype_name(dtype) << " activation " << static_cast<int>(activation);
        }
      }
    }
  }
}

// Several products of one x, each into a place of its own.
TEST(ThinGemm, ProductsSideBySide) {
  const Tensor x = test::random_tensor(kF32, {4, 50}, 1);
  const Tensor all(kF32, {4, 90});
  std::vector<Tensor> weights;
  std::vector<ThinProduct> products;
  std::vector<double> expected(4 * 90);
  int64_t begin = 0;
  for (const int64_t n : {20, 37, 33}) {
    weights.push_back(test::random_tensor(kBF16, {n, 50}, 2 + static_cast<uint64_t>(n)));
    products.push_back({weights.back(), {}, all.view().slice(1, begin, begin + n)});
    const std::vector<double> part =
        product(test::values(x), test::values(weights.back()), {4, n, 50, kF32, kBF16, kF32, kF32});
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < n; ++j)
        expected[static_cast<size_t>(i * 90 + begin + j)] = part[static_cast<size_t>(i * n + j)];
    begin += n;
  }
  for (const std::string& name : implementations(false)) {
    Stream stream(2);
    fill_random(all, 9);
    thin_gemm(stream, {.x = x, .products = products, .implementation = name});
    EXPECT_TRUE(test::close(all.view(), expected, tolerance({4, 37, 50, kF32, kBF16, kF32, kF32}))) << name;
  }
}

// Bit by bit: a float32 weight counts as its bf16, ties, infinities, NaN and the smallest numbers included.
TEST(ThinGemm, RoundsWeightsAsConvertingDoes) {
  const std::vector<uint32_t> bits{0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f800000, 0xff800000,
                                   0x7fc00001, 0x7f800001, 0x00000001, 0x00008000, 0x80018000, 0x7f7fffff, 0x80000000};
  const auto n = static_cast<int64_t>(bits.size());
  const Tensor w(kF32, {n, 1}), x(kF32, {1, 1}), out(kF32, {1, n});
  std::memcpy(w.data<float>(), bits.data(), w.view().bytes());
  x.data<float>()[0] = 1;
  const ThinProduct one{w, {}, out};
  for (const std::string& name : implementations(false)) {
    Stream stream(1);
    thin_gemm(stream, {.x = x, .products = {&one, 1}, .weight_precision = kBF16, .implementation = name});
    for (int64_t i = 0; i < n; ++i) {
      const float expected = to_float(to_bfloat16(w.data<float>()[i])), actual = out.data<float>()[i];
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(actual)) << name << " " << i;
      } else {
        EXPECT_EQ(actual, expected) << name << " " << i;
      }
    }
  }
}

TEST(ThinGemm, RefusesWhatDoesNotFit) {
  Stream stream(1);
  const Tensor x(kF32, {2, 8}), w(kF32, {4, 8}), other(kF32, {4, 9}), half(DType::kF16, {4, 8}), out(kF32, {2, 4});
  const auto refusal = [&](const ThinProduct& one, const char* implementation = "") {
    return error_of([&] { thin_gemm(stream, {.x = x, .products = {&one, 1}, .implementation = implementation}); });
  };
  EXPECT_EQ(refusal({w, {}, out}), "no error");
  EXPECT_NE(refusal({other, {}, out}).find("[4, 9]"), std::string::npos);
  EXPECT_NE(refusal({w, other, out}).find("gate"), std::string::npos);
  EXPECT_NE(refusal({half, {}, out}).find("F16"), std::string::npos);
  EXPECT_NE(refusal({w, {}, w}).find("shapes do not fit"), std::string::npos);
  EXPECT_NE(refusal({w, {}, out, x}).find("bias is F32 [2, 8]"), std::string::npos);
  EXPECT_NE(refusal({w, w, out, {}, Activation::kSilu}).find("neither bias nor activation"), std::string::npos);
  EXPECT_NE(refusal({w, {}, out}, "fastest").find("amx, avx512, avx2, reference"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
