#include "bench/attention_data.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::bench {
namespace {

// splitmix64.
uint64_t next(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double uniform(uint64_t& state) { return (static_cast<double>(next(state) >> 11) + 0.5) * 0x1p-53; }

void store(const TensorView& x, int64_t at, double value) {
  if (x.dtype() == DType::kBF16) {
    x.data<BFloat16>()[at] = to_bfloat16(static_cast<float>(value));
  } else {
    x.data<float>()[at] = static_cast<float>(value);
  }
}

double load(const TensorView& x, int64_t at) {
  if (x.dtype() == DType::kF64) return x.data<double>()[at];
  if (x.dtype() == DType::kBF16) return static_cast<double>(to_float(x.data<BFloat16>()[at]));
  return static_cast<double>(x.data<float>()[at]);
}

template <typename Body>
void for_each_row(const TensorView& x, Body&& body) {
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t s = 0; s < x.extent(1); ++s) {
      for (int64_t h = 0; h < x.extent(2); ++h) body(b, s, h);
    }
  }
}

int64_t row_offset(const TensorView& x, int64_t b, int64_t s, int64_t h) {
  return b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
}

double largest_row_norm(const TensorView& x) {
  double largest = 0;
  for_each_row(x, [&](int64_t b, int64_t s, int64_t h) {
    const int64_t row = row_offset(x, b, s, h);
    double sum = 0;
    for (int64_t d = 0; d < x.extent(3); ++d) sum += load(x, row + d) * load(x, row + d);
    largest = std::max(largest, sum);
  });
  return std::sqrt(largest);
}

// Relative L2, from ε = 2^-24: a score is a float32 sum of D independent products, wrong by at most ε·|scale|·‖q‖·‖k‖,
// and twice that bounds what softmax makes of it in numerator and denominator; exp2 is within 2^-22 and sums are folded
// by tile, 8 ε together; bf16 rounds p and o, at most 2^-9 of the norm each. The same as in the kernels' tests.
double tolerance_of(const AttentionData& data) {
  const double scores =
      std::abs(static_cast<double>(data.problem.scale)) * largest_row_norm(data.q) * largest_row_norm(data.k);
  const double float32 = 0x1p-24 * (8 + 2 * scores);
  return data.problem.dtype == DType::kBF16 ? 0x1p-8 + float32 : float32;
}

}  // namespace

void fill_normal(const TensorView& tensor, uint64_t seed) {
  const TensorView x = tensor.rank() == 4 ? tensor : tensor.reshape({1, 1, 1, tensor.size()});
  uint64_t state = seed * 0x9e3779b97f4a7c15u;
  double spare = 0;
  bool has_spare = false;
  for_each_row(x, [&](int64_t b, int64_t s, int64_t h) {
    const int64_t row = row_offset(x, b, s, h);
    for (int64_t d = 0; d < x.extent(3); ++d) {  // Box-Muller, both of the pair
      double value = spare;
      if (!has_spare) {
        const double radius = std::sqrt(-2 * std::log(uniform(state)));
        const double angle = 2 * std::numbers::pi * uniform(state);
        value = radius * std::cos(angle);
        spare = radius * std::sin(angle);
      }
      has_spare = !has_spare;
      store(x, row + d, value);
    }
  });
}

AttentionData::AttentionData(const problems::AttentionShape& shape, DType dtype)
    : q(dtype, {shape.batch, shape.queries, shape.heads, shape.head_dim}),
      k(dtype, {shape.batch, shape.keys, shape.heads, shape.head_dim}),
      v(dtype, {shape.batch, shape.keys, shape.heads, shape.head_dim}) {
  problem.batch = shape.batch;
  problem.query_tokens = shape.queries;
  problem.key_tokens = shape.keys;
  problem.heads = shape.heads;
  problem.head_dim = shape.head_dim;
  problem.dtype = dtype;
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  fill_normal(q, 1);
  fill_normal(k, 2);
  fill_normal(v, 3);
  valid_keys = shape.batch * shape.keys;
  if (shape.key_lengths > 0) {
    problem.mask = kernels::MaskKind::kKeyLengths;
    const auto length = std::max<int64_t>(1, std::llround(shape.key_lengths * static_cast<double>(shape.keys)));
    key_lengths.assign(static_cast<size_t>(shape.batch), length);
    valid_keys = shape.batch * length;
  } else if (shape.key_mask > 0) {
    problem.mask = kernels::MaskKind::kKeyMask;
    key_mask = Tensor(DType::kU8, {shape.batch, shape.keys});
    valid_keys = 0;
    uint64_t state = 4;
    for (int64_t i = 0; i < key_mask.size(); ++i) {
      const bool valid = i % shape.keys == 0 || uniform(state) < shape.key_mask;  // no row without a key
      key_mask.data<uint8_t>()[i] = valid ? 1 : 0;
      valid_keys += valid ? 1 : 0;
    }
  }
  flop = 4.0 * static_cast<double>(shape.queries) * static_cast<double>(valid_keys) *
         static_cast<double>(shape.heads * shape.head_dim);
}

kernels::KeyBlock AttentionData::block() const {
  kernels::KeyBlock block;
  block.k = k;
  block.v = v;
  block.key_lengths = key_lengths;
  if (key_mask) block.key_mask = key_mask;
  return block;
}

SampledReference::SampledReference(const AttentionData& data, int64_t rows) : tolerance_(tolerance_of(data)) {
  const int64_t queries = data.problem.query_tokens;
  if (rows <= 0) {
    // 1e8 scalar multiply-adds: a tenth of a second or so.
    const double row_cost = 0.5 * data.flop / static_cast<double>(queries);
    rows = std::clamp<int64_t>(std::llround(1e8 / row_cost), 8, 512);
  }
  if (rows >= queries) {
    samples_.push_back({0, 1, queries, {}});
  } else {
    // The last rows are in the last, partial tile.
    const int64_t last = std::max<int64_t>(1, std::min<int64_t>(4, rows / 2));
    const int64_t spread = std::max<int64_t>(1, rows - last);
    samples_.push_back({0, std::max<int64_t>(1, queries / spread), spread, {}});
    samples_.push_back({queries - last, 1, last, {}});
  }
  for (Sample& sample : samples_) {
    kernels::FlashProblem problem = data.problem;
    problem.query_tokens = sample.count;
    sample.expected = Tensor(DType::kF64, {problem.batch, sample.count, problem.heads, problem.head_dim});
    kernels::flash_attention_reference(problem, pick(data.q, sample), data.block(), sample.expected);
  }
}

std::string Verdict::note() const {
  if (passed()) return {};
  return finite ? "WRONG: beyond the tolerance" : "WRONG: not finite";
}

TensorView SampledReference::pick(const TensorView& x, const Sample& sample) const {
  char* first = x.data<char>() + static_cast<size_t>(sample.first * x.stride(1)) * dtype_size(x.dtype());
  return TensorView(first, x.dtype(), {x.extent(0), sample.count, x.extent(2), x.extent(3)},
                    {x.stride(0), sample.step * x.stride(1), x.stride(2), x.stride(3)});
}

Verdict SampledReference::check(const TensorView& o) const {
  Verdict verdict;
  verdict.tolerance = tolerance_;
  double difference = 0, norm = 0;
  for (const Sample& sample : samples_) {
    const TensorView ours = pick(o, sample), theirs = sample.expected;
    for_each_row(theirs, [&](int64_t b, int64_t s, int64_t h) {
      const int64_t at = row_offset(ours, b, s, h), expected_at = row_offset(theirs, b, s, h);
      for (int64_t d = 0; d < theirs.extent(3); ++d) {
        const double expected = load(theirs, expected_at + d), error = load(ours, at + d) - expected;
        if (!std::isfinite(error)) verdict.finite = false;
        difference += error * error;
        norm += expected * expected;
        verdict.max_abs = std::max(verdict.max_abs, std::abs(error));
      }
    });
  }
  verdict.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  return verdict;
}

}  // namespace zoetrope::bench
