#include "kernels/flash_attention/testing.h"

#include <cmath>

#include "base/hash.h"
#include "base/index_range.h"
#include "kernels/testing.h"
#include "tensor/half.h"

namespace zoetrope::kernels::flash_testing {
namespace {

int64_t offset(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d) {
  return b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d * x.stride(3);
}

template <typename Body>
void for_each_element(const TensorView& x, Body&& body) {
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t s = 0; s < x.extent(1); ++s) {
      for (int64_t h = 0; h < x.extent(2); ++h) {
        for (int64_t d = 0; d < x.extent(3); ++d) body(b, s, h, d);
      }
    }
  }
}

double largest_row_norm(const TensorView& x) {
  double largest = 0;
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t s = 0; s < x.extent(1); ++s) {
      for (int64_t h = 0; h < x.extent(2); ++h) {
        double sum = 0;
        for (int64_t d = 0; d < x.extent(3); ++d) sum += std::pow(element(x, b, s, h, d), 2);
        if (std::isfinite(sum)) largest = std::max(largest, std::sqrt(sum));
      }
    }
  }
  return largest;
}

}  // namespace

std::vector<Variant> variants() {
  return {{"amx_bf16", DType::kBF16}, {"avx512_bf16", DType::kBF16}, {"avx512", DType::kF32}, {"avx512", DType::kBF16},
          {"avx2", DType::kF32},      {"avx2", DType::kBF16},        {"scalar", DType::kF32}, {"scalar", DType::kBF16}};
}

std::vector<Variant> softmax_variants() {
  std::vector<Variant> all = variants();
  for (const Softmax softmax : {Softmax::kExactOnline, Softmax::kFixedMax}) {
    for (Variant variant : variants()) {
      variant.softmax = softmax;
      all.push_back(variant);
    }
  }
  return all;
}

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.implementation << "_" << dtype_name(variant.dtype);
  if (variant.softmax == Softmax::kExactOnline) *out << "_exact";
  if (variant.softmax == Softmax::kFixedMax) *out << "_fixed";
}

std::string variant_name(const ::testing::TestParamInfo<Variant>& info) { return ::testing::PrintToString(info.param); }

double element(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d) {
  const int64_t at = offset(x, b, s, h, d);
  if (x.dtype() == DType::kF64) return x.data<double>()[at];
  if (x.dtype() == DType::kBF16) return to_float(x.data<BFloat16>()[at]);
  return x.data<float>()[at];
}

void set_element(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d, float value) {
  const int64_t at = offset(x, b, s, h, d);
  if (x.dtype() == DType::kBF16) {
    x.data<BFloat16>()[at] = to_bfloat16(value);
  } else {
    x.data<float>()[at] = value;
  }
}

Case::Case(const Variant& variant, int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t head_dim)
    : q(variant.dtype, {batch, queries, heads, head_dim}),
      k(variant.dtype, {batch, keys, heads, head_dim}),
      v(variant.dtype, {batch, keys, heads, head_dim}),
      o(variant.dtype, {batch, queries, heads, head_dim}) {
  problem.batch = batch;
  problem.query_tokens = queries;
  problem.key_tokens = keys;
  problem.heads = heads;
  problem.head_dim = head_dim;
  problem.dtype = variant.dtype;
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  problem.implementation = variant.implementation;
  problem.softmax = variant.softmax;
  test::fill_random(q, 1);
  test::fill_random(k, 2);
  test::fill_random(v, 3);
}

void Case::use_key_lengths(std::vector<int64_t> lengths) {
  problem.mask = MaskKind::kKeyLengths;
  key_lengths = std::move(lengths);
}

void Case::use_key_mask(uint64_t seed, double density) {
  problem.mask = MaskKind::kKeyMask;
  key_mask = Tensor(DType::kU8, {problem.batch, problem.key_tokens});
  for (int64_t i = 0; i < key_mask.size(); ++i) {
    const uint64_t bits = split_mix((seed << 32) + static_cast<uint64_t>(i));
    key_mask.data<uint8_t>()[i] = static_cast<double>(bits >> 11) * 0x1p-53 < density ? 1 : 0;
  }
}

void Case::use_bias(uint64_t seed, double deviation) {
  problem.bias = true;
  bias = Tensor(DType::kF32, {problem.heads, problem.query_tokens, problem.key_tokens});
  test::fill_random(bias, seed, 0, deviation);
}

KeyBlock Case::block() const { return block({0, problem.key_tokens}); }

KeyBlock Case::block(IndexRange keys) const {
  KeyBlock block;
  block.k = k.view().slice(1, keys.begin, keys.end);
  block.v = v.view().slice(1, keys.begin, keys.end);
  block.first_key = keys.begin;
  block.key_lengths = key_lengths;
  if (key_mask) block.key_mask = key_mask;
  if (bias) block.bias = bias.view().slice(2, keys.begin, keys.end);
  if (known) block.statistics = known;
  return block;
}

Tensor Case::reference() const {
  Tensor result(DType::kF64, o.shape());
  flash_attention_reference(problem, q, block(), result);
  return result;
}

void Case::attend(int threads) {
  Stream stream(threads);
  counts = FlashAttention(problem).attend(stream, q, block(), o);
}

Tensor Case::statistics(const std::vector<IndexRange>& blocks) const {
  Stream stream(2);
  const FlashAttention attention(problem);
  const Shape shape{problem.batch, problem.heads, 3 + problem.head_dim};
  std::vector<Tensor> parts;
  for (const IndexRange& keys : blocks) {
    attention.key_statistics(stream, block(keys), parts.emplace_back(DType::kF32, shape));
  }
  Tensor all(DType::kF32, shape);
  FlashAttention::combine_key_statistics(std::vector<TensorView>(parts.begin(), parts.end()), all);
  return all;
}

void Case::know_statistics(const std::vector<IndexRange>& blocks) {
  if (problem.softmax == Softmax::kFixedMax) known = statistics(blocks);
}

void Case::fold(const std::vector<IndexRange>& blocks, int threads) {
  Stream stream(threads);
  const FlashAttention attention(problem);
  const auto state = attention.make_state();
  attention.init(stream, *state);
  know_statistics(blocks);
  counts = {};
  for (const IndexRange& keys : blocks) {
    const TileCounts one = attention.accumulate(stream, *state, q, block(keys));
    counts.fixed += one.fixed;
    counts.online += one.online;
    counts.int8_heads += one.int8_heads;
    counts.bf16_heads += one.bf16_heads;
  }
  attention.finish(stream, *state, o);
}

Deviation deviation(const TensorView& o, const TensorView& reference) {
  Deviation result;
  double difference = 0, norm = 0;
  for_each_element(reference, [&](int64_t b, int64_t s, int64_t h, int64_t d) {
    const double ours = element(o, b, s, h, d), theirs = element(reference, b, s, h, d);
    if (std::isfinite(ours) != std::isfinite(theirs)) ++result.nonfinite_mismatches;
    if (!std::isfinite(ours) || !std::isfinite(theirs)) return;
    difference += (ours - theirs) * (ours - theirs);
    norm += theirs * theirs;
    result.max_abs = std::max(result.max_abs, std::abs(ours - theirs));
  });
  result.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  return result;
}

double tolerance(const Case& c, double correlation) {
  const double scores = std::abs(c.problem.scale) * largest_row_norm(c.q) * largest_row_norm(c.k);
  const double float32 = 0x1p-24 * (8 + 2 * correlation * scores);
  return c.problem.dtype == DType::kBF16 ? 0x1p-8 + float32 : float32;
}

double log_sum_tolerance(const Case& c) {
  double scores = std::abs(c.problem.scale) * largest_row_norm(c.q) * largest_row_norm(c.k);
  double bias = 0;
  for (int64_t i = 0; c.bias && i < c.bias.size(); ++i) {
    const double value = std::abs(c.bias.data<float>()[i]);
    if (std::isfinite(value)) bias = std::max(bias, value);
  }
  scores += bias;
  const double keys = std::log(static_cast<double>(std::max<int64_t>(c.problem.key_tokens, 1)));
  const double float32 = 0x1p-24 * (8 + 5 * scores + keys);
  return c.problem.dtype == DType::kBF16 ? 0x1p-8 + float32 : float32;
}

::testing::AssertionResult matches_reference(const Case& c, double correlation) {
  const Tensor reference = c.reference();
  const Deviation d = deviation(c.o, reference);
  const double limit = tolerance(c, correlation);
  if (d.nonfinite_mismatches == 0 && d.relative_l2 <= limit) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << c.problem.implementation << " " << dtype_name(c.problem.dtype) << " q "
                                       << c.q.shape().to_string() << " k " << c.k.shape().to_string()
                                       << ": relative L2 " << d.relative_l2 << " > " << limit << ", max abs "
                                       << d.max_abs << ", non-finite mismatches " << d.nonfinite_mismatches;
}

}  // namespace zoetrope::kernels::flash_testing
