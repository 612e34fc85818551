// The log-sum-exp against float64 for every implementation and softmax: at once, folded block by block, with masks,
// with rows that leave the fixed offsets, and without changing a bit of o.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/test_folder.h"
#include "kernels/flash_attention/testing.h"

namespace zoetrope::kernels::flash_testing {
namespace {

class LogSumExp : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
};

Tensor expected(const Case& c) {
  const FlashProblem& p = c.problem;
  Tensor o(DType::kF64, c.o.shape()), logs(DType::kF64, {p.batch, p.query_tokens, p.heads});
  flash_attention_reference(p, c.q, c.block(), o, logs);
  return logs;
}

// Of [B, Sq, H] F32 to F64; infinite where one of them is finite and the other is not, or has another sign.
double largest_error(const TensorView& ours, const TensorView& reference) {
  double largest = 0;
  for (int64_t b = 0; b < ours.extent(0); ++b)
    for (int64_t i = 0; i < ours.extent(1); ++i)
      for (int64_t h = 0; h < ours.extent(2); ++h) {
        const double x = ours.data<float>()[b * ours.stride(0) + i * ours.stride(1) + h * ours.stride(2)];
        const double y =
            reference.data<double>()[b * reference.stride(0) + i * reference.stride(1) + h * reference.stride(2)];
        if (x == y) continue;
        const double error = std::abs(x - y);
        largest = std::isfinite(error) ? std::max(largest, error) : std::numeric_limits<double>::infinity();
      }
  return largest;
}

// At once and block by block.
void expect_reference(Case& c) {
  const FlashProblem& p = c.problem;
  const Tensor reference = expected(c);
  const FlashAttention attention(p);
  Stream stream(2);
  c.attend();
  Tensor o(p.dtype, c.o.shape());
  // Heads outside, as other libraries keep it: any strides will do.
  const Tensor kept(DType::kF32, {p.batch, p.heads, p.query_tokens});
  const TensorView logs = kept.view().permute({0, 2, 1});
  attention.attend(stream, c.q, c.block(), o, logs);
  EXPECT_LE(largest_error(logs, reference), log_sum_tolerance(c));
  EXPECT_EQ(std::memcmp(o.view().raw(), c.o.view().raw(), o.view().bytes()), 0) << "o is another with the log-sum-exp";

  const std::vector<IndexRange> blocks = {{0, 50}, {50, 51}, {51, p.key_tokens}};
  c.know_statistics(blocks);
  const auto state = attention.make_state();
  attention.init(stream, *state);
  for (const IndexRange& keys : blocks) attention.accumulate(stream, *state, c.q, c.block(keys));
  const Tensor folded(DType::kF32, {p.batch, p.query_tokens, p.heads});
  attention.finish(stream, *state, o, folded);
  EXPECT_LE(largest_error(folded, reference), log_sum_tolerance(c));
}

TEST_P(LogSumExp, IsThatOfTheReference) {
  Case c(GetParam(), 2, 70, 131, 3, 40);
  expect_reference(c);
}

TEST_P(LogSumExp, CountsValidKeysOnly) {
  Case lengths(GetParam(), 2, 33, 131, 2, 16);
  lengths.use_key_lengths({66, 0});  // the second entry has no valid key: −∞
  expect_reference(lengths);
  Case mask(GetParam(), 2, 33, 131, 2, 16);
  mask.use_key_mask(5, 0.5);
  expect_reference(mask);
}

// Larger and larger scores: offsets with an exponent, then rows that go online in fixed-max.
TEST_P(LogSumExp, OfLargeScores) {
  for (const float factor : {4.0f, 16.0f, 64.0f}) {
    SCOPED_TRACE(factor);
    Case c(GetParam(), 1, 70, 131, 1, 32);
    for (int64_t i = 0; i < 64; ++i)
      for (int64_t d = 0; d < 32; ++d)
        set_element(c.q, 0, i, 0, d, factor * static_cast<float>(element(c.q, 0, i, 0, d)));
    expect_reference(c);
  }
}

TEST_P(LogSumExp, WithABias) {
  if (GetParam().softmax == Softmax::kFixedMax) GTEST_SKIP() << "has no bias";
  Case c(GetParam(), 1, 20, 131, 2, 16);
  c.use_bias(7, 3);
  // Every score of one row is −∞, which is a sum of zero.
  for (int64_t j = 0; j < 131; ++j) c.bias.data<float>()[3 * 131 + j] = -kInfinity;
  const FlashAttention attention(c.problem);
  Stream stream(1);
  const Tensor logs(DType::kF32, {1, 20, 2});
  attention.attend(stream, c.q, c.block(), c.o, logs);
  EXPECT_EQ(logs.data<float>()[3 * 2], -kInfinity);
  Tensor reference = expected(c);
  EXPECT_TRUE(std::isnan(reference.data<double>()[3 * 2]));  // −∞ − (−∞) on the way
  reference.data<double>()[3 * 2] = -std::numeric_limits<double>::infinity();
  EXPECT_LE(largest_error(logs, reference), log_sum_tolerance(c));
}

INSTANTIATE_TEST_SUITE_P(Variants, LogSumExp, testing::ValuesIn(softmax_variants()), variant_name);

TEST(LogSumExpTensor, MustFit) {
  Case c({"scalar", DType::kF32}, 1, 4, 5, 2, 8);
  const FlashAttention attention(c.problem);
  Stream stream(1);
  const auto refusal = [&](const Tensor& logs) {
    return error_of([&] { attention.attend(stream, c.q, c.block(), c.o, logs); });
  };
  EXPECT_EQ(refusal(Tensor(DType::kF32, {1, 4, 3})),
            "flash attention: log_sum_exp is F32 [1, 4, 3], but must be F32 [1, 4, 2] (batch, tokens, heads)");
  EXPECT_EQ(refusal(Tensor(DType::kF64, {1, 4, 2})),
            "flash attention: log_sum_exp is F64 [1, 4, 2], but must be F32 [1, 4, 2] (batch, tokens, heads)");
  EXPECT_EQ(refusal(Tensor(DType::kF32, {1, 4, 2})), "no error");
}

}  // namespace
}  // namespace zoetrope::kernels::flash_testing
