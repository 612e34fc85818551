// The log-sum-exp against float64 for every implementation and softmax: at once, folded block by block, with masks,
// with rows that leave the fixed offsets, and without changing a bit of o. In int8 within the bound that is stated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "base/test_folder.h"
#include "kernels/flash_attention/int8_attention.h"
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

// Of ours less the reference's, by row.
std::vector<double> log_sum_errors(const Case& c) {
  const Shape shape{1, c.problem.query_tokens, 1};
  const Tensor logs(DType::kF32, shape), expected(DType::kF64, shape), o(DType::kF64, c.o.shape());
  Stream stream(2);
  FlashAttention(c.problem).attend(stream, c.q, c.block(), c.o, logs);
  flash_attention_reference(c.problem, c.q, c.block(), o, expected);
  std::vector<double> errors;
  for (int64_t i = 0; i < c.problem.query_tokens; ++i)
    errors.push_back(static_cast<double>(logs.data<float>()[i]) - expected.data<double>()[i]);
  return errors;
}

// ‖x − mean‖ of each token, of [1, S, 1, D].
std::vector<double> distances(const TensorView& x, const std::vector<double>& mean) {
  std::vector<double> all;
  for (int64_t i = 0; i < x.extent(1); ++i) {
    double square = 0;
    for (size_t d = 0; d < mean.size(); ++d)
      square += std::pow(element(x, 0, i, 0, static_cast<int64_t>(d)) - mean[d], 2);
    all.push_back(std::sqrt(square));
  }
  return all;
}

class Int8LogSumExp : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string reason = FlashAttention::refusal(make(1, 1, 1).problem, GetParam());
    if (reason.starts_with("needs ")) GTEST_SKIP() << GetParam() << " " << reason;
    ASSERT_EQ(reason, "");
  }
  Case make(int64_t keys, int64_t head_dim, float scale, Softmax softmax = Softmax::kOnline) const {
    Case c({GetParam(), DType::kBF16, softmax}, 1, 20, keys, 1, head_dim);
    c.problem.int8 = true;
    c.problem.int8_limit = std::numeric_limits<double>::infinity();  // whatever it costs
    c.problem.scale = scale;
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Implementations, Int8LogSumExp,
                         testing::Values("avx512_int8", "avx_vnni_int8", "avx2_int8", "scalar"),
                         [](const auto& suite) { return std::string(suite.param); });

// The bound that zoetrope/attention.h states. Rounding moves a score by half of what int8_score_growth() says, and the
// logarithm by no more; and the weights of a panel by 63/510 of the largest at most, since that one is exact.
TEST_P(Int8LogSumExp, IsWithinItsBound) {
  for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax})
    for (const int64_t head_dim : {1, 3, 16, 64})
      for (const int64_t keys : {2, 64, 300})
        for (const float scale : {0.1f, 0.5f, 2.0f}) {
          SCOPED_TRACE(testing::Message() << keys << " keys of " << head_dim << ", scale " << scale);
          const Case c = make(keys, head_dim, scale, softmax);
          const auto elements = static_cast<size_t>(head_dim);
          std::vector<double> mean(elements);
          for (size_t d = 0; d < elements; ++d)
            for (int64_t j = 0; j < keys; ++j)
              mean[d] += element(c.k, 0, j, 0, static_cast<int64_t>(d)) / static_cast<double>(keys);
          const std::vector<double> of_k = distances(c.k, mean), of_q = distances(c.q, std::vector<double>(elements));
          const double radius = *std::max_element(of_k.begin(), of_k.end());
          const std::vector<double> errors = log_sum_errors(c);
          for (size_t i = 0; i < errors.size(); ++i)
            EXPECT_LE(std::abs(errors[i]),
                      1.0 / 8 + int8_score_growth(head_dim) / 2 * static_cast<double>(scale) * of_q[i] * radius +
                          log_sum_tolerance(c));
        }
  // Nearly the worst: the scores are exact, and 63 weights of 0.49/255 or of 0.51/255 become 0 or 1/255.
  for (const auto& [key, least, most] : {std::tuple(-6.25f, -0.125, -0.1), std::tuple(-6.21875f, 0.09, 0.125)}) {
    const Case c = make(64, 1, 1);
    for (int64_t i = 0; i < 20; ++i) set_element(c.q, 0, i, 0, 0, 1);
    for (int64_t j = 0; j < 64; ++j) set_element(c.k, 0, j, 0, 0, j == 0 ? 0 : key);
    for (const double error : log_sum_errors(c)) {
      EXPECT_GE(error, least);
      EXPECT_LE(error, most);
    }
  }
}

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
