#include "kernels/gemm/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cpu_features.h"
#include "kernels/gemm/testing.h"
#include "kernels/test_util.h"

namespace zoetrope::kernels {
namespace {

using test::error_of;
using test::fill_random;
using test::GappedTensor;

struct Case {
  int64_t m, n, k;
  DType in, out;
  bool bias;
  DType bias_dtype;
  Activation activation;
};

struct Data {
  GappedTensor x, w, out;
  Tensor bias;
  std::vector<double> expected;

  explicit Data(const Case& c, uint64_t seed = 1)
      : x(c.in, {c.m, c.k}, 3), w(c.in, {c.n, c.k}, 0), out(c.out, {c.m, c.n}, 5), bias(c.bias_dtype, {c.n}) {
    fill_random(x, seed);
    fill_random(w, seed + 1, 0, 1 / std::sqrt(static_cast<double>(c.k)));
    fill_random(bias, seed + 2);
    const std::vector<double> xs = test::values(x), ws = test::values(w), bs = test::values(bias);
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = c.bias ? bs[static_cast<size_t>(j)] : 0;
        for (int64_t l = 0; l < c.k; ++l)
          sum += xs[static_cast<size_t>(i * c.k + l)] * ws[static_cast<size_t>(j * c.k + l)];
        expected.push_back(test::textbook(c.activation, sum));
      }
    }
  }
  Gemm args(const Case& c, const char* name) const {
    return {x, w, c.bias ? bias.view() : TensorView{}, c.activation, out, name};
  }
};

// A float32 sum of K terms of random sign walks: at most u·√K of its size (house: a sum of products in any order), the
// activation adds a few u, a bf16 result one rounding.
double tolerance(const Case& c) {
  return test::kUnitF32 * (4 + std::sqrt(static_cast<double>(c.k))) + (c.out == DType::kBF16 ? test::kUnitBF16 : 0);
}

std::vector<const char*> names_for(DType in) {
  if (in == DType::kF32) return {"reference", "onednn"};
  return {"reference", "f32_via_convert", "onednn_bf16"};
}

void check(const Case& c) {
  const Data data(c);
  for (const char* name : names_for(c.in)) {
    SCOPED_TRACE(testing::Message() << name << " m=" << c.m << " n=" << c.n << " k=" << c.k);
    for (int threads : {1, 2}) {
      Stream stream(threads);
      const std::string error = error_of([&] { gemm(stream, data.args(c, name)); });
      if (error.find("AVX-512") != std::string::npos) break;  // BF16 in oneDNN; has a test of its own below
      EXPECT_EQ(error, "");
      EXPECT_TRUE(close(data.out, data.expected, tolerance(c)));
      EXPECT_TRUE(data.out.gaps_intact());
      test::fill_random(data.out.view(), 9);
    }
  }
}

TEST(Gemm, EveryImplementationNearTheVectorWidths) {
  for (int64_t m : {1, 2, 17})
    for (int64_t n : {1, 15, 16, 17, 33})
      for (int64_t k : {1, 7, 8, 31, 32, 33})
        for (DType dtype : {DType::kF32, DType::kBF16})
          check({m, n, k, dtype, dtype, true, DType::kF32, Activation::kNone});
}

TEST(Gemm, ActivationsAndMixedDtypes) {
  for (Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf})
    for (DType in : {DType::kF32, DType::kBF16})
      for (DType out : {DType::kF32, DType::kBF16})
        for (DType bias : {DType::kF32, DType::kBF16}) check({9, 65, 130, in, out, true, bias, activation});
}

TEST(Gemm, WithoutBias) {
  check({5, 40, 96, DType::kF32, DType::kF32, false, DType::kF32, Activation::kNone});
  check({5, 40, 96, DType::kBF16, DType::kBF16, false, DType::kF32, Activation::kGeluTanh});
}

// More than one panel of rows and of columns in f32_via_convert.
TEST(Gemm, SeveralPanels) { check({1027, 514, 9, DType::kBF16, DType::kF32, true, DType::kF32, Activation::kSilu}); }

// Float32 results are held to the float32 noise floor: one float32 rounding a step, no bf16 and no short cuts inside.
TEST(Gemm, Float32IsStrict) {
  for (Activation activation : {Activation::kNone, Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf}) {
    const Case c{64, 96, 256, DType::kF32, DType::kF32, true, DType::kF32, activation};
    const Data data(c);
    Stream stream(2);
    gemm(stream, data.args(c, "onednn"));
    EXPECT_TRUE(close(data.out, data.expected, 3e-7)) << static_cast<int>(activation);
  }
}

TEST(Gemm, HandComputed) {
  float x[] = {1, 2, 3, 4}, w[] = {1, 0, 0, -1, 2, 5}, bias[] = {0.5f, 0, -1}, out[6];
  for (const char* name : {"reference", "onednn"}) {
    Stream stream(1);
    gemm(stream, {{x, DType::kF32, {2, 2}},
                  {w, DType::kF32, {3, 2}},
                  {bias, DType::kF32, {3}},
                  Activation::kNone,
                  {out, DType::kF32, {2, 3}},
                  name});
    EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{1.5f, -2, 11, 3.5f, -4, 25})) << name;
  }
}

TEST(Gemm, NoRowsIsNothing) {
  const Tensor x(DType::kF32, {0, 8}), w = test::random_tensor(DType::kF32, {4, 8}, 1), out(DType::kF32, {0, 4});
  Stream stream(2);
  EXPECT_NO_THROW(gemm(stream, {x, w, {}, Activation::kNone, out, ""}));
}

// Mapped checkpoints put tensors at any multiple of the element size.
TEST(Gemm, WeightsNeedNoAlignment) {
  const Case c{6, 33, 50, DType::kF32, DType::kF32, true, DType::kF32, Activation::kNone};
  const Data data(c);
  Tensor shifted(DType::kF32, {33 * 50 + 1});
  const TensorView w(shifted.data<float>() + 1, DType::kF32, {33, 50});
  for (int64_t i = 0; i < w.size(); ++i) w.data<float>()[i] = data.w.view().data<float>()[i];
  for (const char* name : {"reference", "onednn"}) {
    Stream stream(2);
    Gemm args = data.args(c, name);
    args.w = w;
    gemm(stream, args);
    EXPECT_TRUE(close(data.out, data.expected, tolerance(c))) << name;
  }
}

// Ranks are threads that call at once, each with its own team.
TEST(Gemm, RanksCallAtOnce) {
  const Case c{32, 64, 48, DType::kF32, DType::kF32, true, DType::kF32, Activation::kGeluTanh};
  std::vector<std::thread> ranks;
  std::vector<int> good(4, 0);
  for (size_t rank = 0; rank < good.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      Stream stream(rank % 2 == 0 ? 1 : 2);
      const Data data(c, 100 * rank);
      good[rank] = 1;
      for (int repeat = 0; repeat < 5; ++repeat) {
        gemm(stream, data.args(c, ""));
        if (!close(data.out, data.expected, tolerance(c))) good[rank] = 0;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(good, std::vector<int>(4, 1));
}

TEST(Gemm, PerturbedResultFailsTheComparison) {
  const Case c{8, 16, 32, DType::kF32, DType::kF32, true, DType::kF32, Activation::kNone};
  const Data data(c);
  Stream stream(1);
  gemm(stream, data.args(c, ""));
  ASSERT_TRUE(close(data.out, data.expected, tolerance(c)));
  data.out.view().data<float>()[3] += 1e-4f;
  EXPECT_FALSE(close(data.out, data.expected, tolerance(c)));
}

TEST(Gemm, Bf16InOneDnnOrItsReason) {
  const Case c{4, 16, 32, DType::kBF16, DType::kF32, false, DType::kF32, Activation::kNone};
  const Data data(c);
  Stream stream(1);
  const std::string error = error_of([&] { gemm(stream, data.args(c, "onednn_bf16")); });
  if (!cpu_features().avx512) {
    EXPECT_THAT(error, testing::HasSubstr("only with AVX-512"));
    GTEST_SKIP() << error;
  }
  ASSERT_EQ(error, "");
  EXPECT_TRUE(close(data.out, data.expected, tolerance(c)));
}

// What stands first for BF16 is the machine's to say; it must be one that can, and say why when it is not oneDNN.
TEST(Gemm, Bf16ChoiceGivesItsReason) {
  const Case c{4, 16, 32, DType::kBF16, DType::kBF16, false, DType::kF32, Activation::kNone};
  const Data data(c);
  Stream stream(1);
  gemm(stream, data.args(c, ""));
  EXPECT_TRUE(close(data.out, data.expected, tolerance(c)));
  const std::string error = error_of([&] { gemm(stream, data.args(c, "onednn")); });
  if (!error.empty()) {
    EXPECT_THAT(error, testing::AnyOf(testing::HasSubstr("AVX-512"), testing::HasSubstr("AMX")));
  }
}

TEST(Gemm, Refusals) {
  const Case c{4, 16, 32, DType::kF32, DType::kF32, false, DType::kF32, Activation::kNone};
  const Data data(c);
  Stream stream(1);
  EXPECT_EQ(error_of([&] { gemm(stream, data.args(c, "f32_via_convert")); }),
            "gemm: implementation 'f32_via_convert' cannot run here: x is F32 already, there is nothing to convert");
  EXPECT_EQ(error_of([&] { gemm(stream, data.args(c, "cublas")); }),
            "gemm: there is no implementation 'cublas'; there are: onednn, f32_via_convert, onednn_bf16, reference");
  Gemm bad = data.args(c, "");
  bad.w = data.w.view().slice(1, 0, 31);
  EXPECT_NE(error_of([&] { gemm(stream, bad); }).find("shapes do not fit"), std::string::npos);
  bad = data.args(c, "");
  bad.x = Tensor(DType::kBF16, {4, 32}).view();
  EXPECT_NE(error_of([&] { gemm(stream, bad); }).find("one dtype"), std::string::npos);
  bad = data.args(c, "");
  bad.w = TensorView(data.w.view().raw(), DType::kF32, {16, 32}, {1, 16});
  EXPECT_NE(error_of([&] { gemm(stream, bad); }).find("contiguous"), std::string::npos);
  bad = data.args(c, "");
  bad.bias = Tensor(DType::kF32, {15}).view();
  EXPECT_NE(error_of([&] { gemm(stream, bad); }).find("bias"), std::string::npos);
}

}  // namespace
}  // namespace zoetrope::kernels
