// What callers see besides numbers: which implementation runs, who can be forced, and what is refused with which words.
#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "base/test_folder.h"
#include "kernels/cpu_features.h"
#include "kernels/flash_attention/testing.h"

namespace zoetrope::kernels {
namespace {

using namespace flash_testing;  // NOLINT: test helpers
using ::testing::HasSubstr;

FlashProblem small_problem() {
  FlashProblem p;
  p.query_tokens = p.key_tokens = 4;
  p.heads = 2;
  p.head_dim = 8;
  p.scale = 1;
  return p;
}

TEST(FlashEntryPoint, TestsKnowEveryImplementation) {
  std::set<std::string> tested{"avx512_int8", "avx_vnni_int8", "avx2_int8"};  // in int8_attention_test.cpp
  for (const Variant& v : flash_testing::variants()) tested.insert(v.implementation);
  const auto names = FlashAttention::implementations();
  EXPECT_EQ(tested, std::set<std::string>(names.begin(), names.end()));
  EXPECT_EQ(names.back(), "scalar");
}

TEST(FlashEntryPoint, ForcedImplementationRunsOrSaysWhyNot) {
  for (const std::string& name : FlashAttention::implementations()) {
    FlashProblem p = small_problem();
    p.implementation = name;
    const std::string reason = FlashAttention::refusal(p, name);
    if (reason.empty()) {
      EXPECT_EQ(FlashAttention(p).implementation(), name);
    } else {
      EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("'" + name + "' cannot run here: " + reason));
    }
  }
}

TEST(FlashEntryPoint, UnknownImplementationListsTheNames) {
  FlashProblem p = small_problem();
  p.implementation = "abacus";
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("no implementation 'abacus'; there are: "));
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("scalar"));
  EXPECT_NE(FlashAttention::refusal(p, "abacus"), "");
}

TEST(FlashEntryPoint, UnforcedTakesTheFirstThatCan) {
  const FlashProblem p = small_problem();
  std::string expected;
  for (const std::string& name : FlashAttention::implementations()) {
    if (expected.empty() && FlashAttention::refusal(p, name).empty()) expected = name;
  }
  EXPECT_EQ(FlashAttention(p).implementation(), expected);
}

// In bf16 that is AMX where the CPU has it, and else depends on how fast the CPU multiplies pairs of bf16.
TEST(FlashEntryPoint, BF16TakesWhatThisCpuIsFastAt) {
  FlashProblem p = small_problem();
  p.dtype = DType::kBF16;
  if (!FlashAttention::refusal(p, "avx512_bf16").empty()) GTEST_SKIP() << "needs AVX-512-BF16";
  EXPECT_STREQ(FlashAttention(p).implementation(), cpu_features().amx_bf16         ? "amx_bf16"
                                                   : cpu_features().fast_bf16_dots ? "avx512_bf16"
                                                                                   : "avx512");
}

TEST(FlashEntryPoint, RefusesAbsurdTiles) {
  for (const TileSizes& sizes : {TileSizes{-1, 0}, {0, -1}, {4097, 0}, {0, 8193}}) {
    FlashProblem p = small_problem();
    p.tiles = sizes;
    EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("at most 4096 and 8192"));
  }
}

TEST(FlashEntryPoint, RefusesAbsurdProblems) {
  FlashProblem p = small_problem();
  p.head_dim = 1025;
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("head_dim is 1025, but must be in [1, 1024]"));
  p = small_problem();
  p.head_dim = 0;
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("head_dim is 0"));
  p = small_problem();
  p.dtype = DType::kF16;
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("dtype F16 is not supported; F32 and BF16 are"));
  p = small_problem();
  p.scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("must be finite"));
  p = small_problem();
  p.query_tokens = -1;
  EXPECT_THAT(error_of([&] { FlashAttention{p}; }), HasSubstr("negative size"));
}

class FlashArguments : public ::testing::Test {
 protected:
  Case c{{"scalar", DType::kF32}, 2, 4, 6, 2, 8};
  Stream stream{1};

  std::string attend_error(const TensorView& q, const KeyBlock& block, const TensorView& o) {
    return error_of([&] { FlashAttention(c.problem).attend(stream, q, block, o); });
  }
};

TEST_F(FlashArguments, ShapesThatDisagreeNameTheTensorAndBothShapes) {
  EXPECT_THAT(attend_error(c.q.view().slice(1, 0, 3), c.block(), c.o),
              HasSubstr("q is [2, 3, 2, 8], but must be [2, 4, 2, 8]"));
  KeyBlock block = c.block();
  block.v = block.v.slice(1, 0, 5);
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("v is [2, 5, 2, 8], but must be [2, 6, 2, 8]"));
  block = c.block();
  block.k = block.k.select(2, 0);
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("k is [2, 6, 8]"));
  EXPECT_THAT(attend_error(c.q, c.block(), c.o.view().slice(2, 0, 1)), HasSubstr("o is [2, 4, 1, 8]"));
}

TEST_F(FlashArguments, ABlockLargerThanThePromiseIsRefused) {
  c.problem.key_tokens = 5;
  EXPECT_THAT(attend_error(c.q, c.block({0, 6}), c.o), HasSubstr("a block of 6 keys, but the problem says at most 5"));
}

TEST_F(FlashArguments, WrongDtypeAndStride) {
  const Tensor half(DType::kBF16, c.q.shape());
  EXPECT_THAT(attend_error(half, c.block(), c.o), HasSubstr("q has dtype BF16, but the problem says F32"));
  const Tensor wide(DType::kF32, {2, 4, 2, 16});
  const TensorView every_second(wide.data<float>(), DType::kF32, c.q.shape(), Shape{128, 32, 16, 2});
  EXPECT_THAT(attend_error(every_second, c.block(), c.o),
              HasSubstr("the last axis of q must be contiguous, but its stride is 2"));
}

TEST_F(FlashArguments, MasksThatDoNotFitTheProblem) {
  KeyBlock block = c.block();
  const std::vector<int64_t> three{1, 2, 3};
  block.key_lengths = three;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("the problem's mask is not kKeyLengths"));
  c.problem.mask = MaskKind::kKeyLengths;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("3 key lengths for a batch of 2"));
  c.problem.mask = MaskKind::kKeyMask;
  block = c.block();
  const Tensor short_mask(DType::kU8, {2, 5}), float_mask(DType::kF32, {2, 6});
  block.key_mask = short_mask;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("key_mask is [2, 5], but must be [2, ≥ 6]"));
  block.key_mask = float_mask;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("must be U8 or BOOL"));
}

TEST_F(FlashArguments, BiasThatDoesNotFit) {
  KeyBlock block = c.block();
  const Tensor bias(DType::kF32, {2, 4, 5});
  block.bias = bias;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("a bias was given, but the problem has none"));
  c.problem.bias = true;
  EXPECT_THAT(attend_error(c.q, block, c.o), HasSubstr("bias is F32 [2, 4, 5], but must be F32 [2, 4, 6]"));
}

TEST_F(FlashArguments, TheStateSaysItsSize) {
  // o padded to 16 floats, l and m: 18 floats for each of 2·2·4 rows.
  EXPECT_EQ(FlashAttention(c.problem).state_bytes(), size_t{16 * 18 * 4});
}

}  // namespace
}  // namespace zoetrope::kernels
