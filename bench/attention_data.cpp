#include "bench/attention_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/hash.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"

namespace zoetrope::bench {
namespace {

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
    for (int64_t d = 0; d < x.extent(3); ++d) sum += element(x, row + d) * element(x, row + d);
    largest = std::max(largest, sum);
  });
  return std::sqrt(largest);
}

// Two normal numbers from one place of a sequence (Box and Muller 1958), from 32 random bits each.
template <typename T>
void fill_row(T* row, int64_t count, uint64_t seed, uint64_t place) {
  constexpr float kUnit = 0x1p-32F;
  for (int64_t i = 0; i < count; i += 2) {
    const uint64_t bits = split_mix(seed + (++place) * kSplitMixStep);
    const float u = (static_cast<float>(bits >> 32) + 0.5F) * kUnit;  // in (0, 1]
    const float angle = 2 * std::numbers::pi_v<float> * static_cast<float>(bits & 0xFFFFFFFFu) * kUnit;
    const float radius = std::sqrt(-2 * std::log(u));
    row[i] = from_float<T>(radius * std::cos(angle));
    if (i + 1 < count) row[i + 1] = from_float<T>(radius * std::sin(angle));
  }
}

// Relative L2, from ε = 2^-24: a score is a float32 sum of D independent products, wrong by at most ε·|scale|·‖q‖·‖k‖,
// and twice that bounds its effect on softmax in numerator and denominator; exp2 is within 2^-22 and sums are folded by
// tile, 8 ε together; bf16 rounds p and o, at most 2^-9 of the norm each. The same as in the kernels' tests.
double tolerance_of(const AttentionData& data, float scale) {
  const double scores = std::abs(static_cast<double>(scale)) * largest_row_norm(data.q) * largest_row_norm(data.k);
  const double float32 = 0x1p-24 * (8 + 2 * scores);
  return data.q.dtype() == DType::kBF16 ? 0x1p-8 + float32 : float32;
}

std::vector<TokenSample> samples_of(const AttentionData& data, int64_t rows) {
  const int64_t queries = data.query_tokens();
  if (rows <= 0) {
    // 1e8 scalar multiply-adds: a tenth of a second or so.
    const double row_cost = 0.5 * data.flop() / static_cast<double>(queries);
    rows = std::clamp<int64_t>(std::llround(1e8 / row_cost), 8, 512);
  }
  if (rows >= queries) return {{0, 1, queries}};
  // The last rows are in the last, partial tile.
  const int64_t last = std::max<int64_t>(1, std::min<int64_t>(4, rows / 2));
  const int64_t spread = std::max<int64_t>(1, rows - last);
  return {{0, std::max<int64_t>(1, queries / spread), spread}, {queries - last, 1, last}};
}

}  // namespace

void fill_normal(const TensorView& tensor, uint64_t seed) {
  const TensorView x = tensor.rank() == 4 ? tensor : tensor.reshape({1, 1, 1, tensor.size()});
  uint64_t place = 0;
  with_compute_type(x.dtype(), "the tensor", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_row(x, [&](int64_t b, int64_t s, int64_t h) {
      fill_row(x.data<T>() + row_offset(x, b, s, h), x.extent(3), seed * kSplitMixStep, place);
      place += static_cast<uint64_t>((x.extent(3) + 1) / 2);
    });
  });
}

void fill_normal(const TensorView& x, IndexRange tokens, uint64_t seed, ThreadTeam& team) {
  const int64_t batch = x.extent(0), row = x.extent(2) * x.extent(3);
  constexpr int64_t kGrain = 1 << 14;  // elements; for fewer, another thread costs more than it gains
  with_compute_type(x.dtype(), "the tensor", [&](auto tag) {
    using T = typename decltype(tag)::type;
    team.parallel_for(batch * tokens.size(), std::max<int64_t>(1, kGrain / row), [&](IndexRange part, int) {
      for (int64_t i = part.begin; i < part.end; ++i) {
        const int64_t at = i / tokens.size() * x.extent(1) + tokens.begin + i % tokens.size();
        // A row takes (row + 1) / 2 places, so values do not depend on how rows are divided.
        fill_row(x.data<T>() + at * row, row, seed, static_cast<uint64_t>(at * ((row + 1) / 2)));
      }
    });
  });
}

AttentionData::AttentionData(const problems::AttentionShape& shape, DType dtype) {
  const Shape queries{shape.batch, shape.queries, shape.heads, shape.head_dim};
  const Shape keys{shape.batch, shape.keys, shape.heads, shape.head_dim};
  for (const Shape& extents : {queries, keys, keys}) owned.emplace_back(dtype, extents);
  for (uint64_t i = 0; i < 3; ++i) fill_normal(owned[i], i + 1);
  q = owned[0];
  k = owned[1];
  v = owned[2];
  if (shape.key_lengths > 0) {
    const auto length = std::max<int64_t>(1, std::llround(shape.key_lengths * static_cast<double>(shape.keys)));
    key_lengths.assign(static_cast<size_t>(shape.batch), length);
  } else if (shape.key_mask > 0) {
    key_mask = owned.emplace_back(DType::kU8, Shape{shape.batch, shape.keys});
    for (int64_t i = 0; i < key_mask.size(); ++i) {
      const uint64_t bits = split_mix(static_cast<uint64_t>(i + 1) * kSplitMixStep);
      // No batch entry without a key.
      key_mask.data<uint8_t>()[i] =
          i % shape.keys == 0 || static_cast<double>(bits >> 11) * 0x1p-53 < shape.key_mask ? 1 : 0;
    }
  }
}

kernels::MaskKind AttentionData::mask_kind() const {
  if (!key_lengths.empty()) return kernels::MaskKind::kKeyLengths;
  return key_mask ? kernels::MaskKind::kKeyMask : kernels::MaskKind::kNone;
}

int64_t AttentionData::valid_keys() const {
  if (!key_lengths.empty()) return std::accumulate(key_lengths.begin(), key_lengths.end(), int64_t{0});
  if (!key_mask) return q.extent(0) * key_tokens();
  const auto* bytes = key_mask.data<const uint8_t>();
  return key_mask.size() - std::count(bytes, bytes + key_mask.size(), uint8_t{0});
}

double AttentionData::flop() const {
  return 4.0 * static_cast<double>(query_tokens()) * static_cast<double>(valid_keys()) *
         static_cast<double>(q.extent(2) * q.extent(3));
}

kernels::FlashProblem AttentionData::problem() const {
  kernels::FlashProblem problem;
  problem.batch = q.extent(0);
  problem.query_tokens = query_tokens();
  problem.key_tokens = key_tokens();
  problem.heads = q.extent(2);
  problem.head_dim = q.extent(3);
  problem.dtype = q.dtype();
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  problem.mask = mask_kind();
  return problem;
}

kernels::KeyBlock AttentionData::block() const {
  kernels::KeyBlock block;
  block.k = k;
  block.v = v;
  block.key_lengths = key_lengths;
  block.key_mask = key_mask;
  return block;
}

std::string Verdict::note() const {
  if (passed()) return {};
  return finite ? "WRONG: beyond the tolerance" : "WRONG: not finite";
}

TensorView TokenSample::of(const TensorView& x) const {
  char* begin = x.data<char>() + static_cast<size_t>(first * x.stride(1)) * dtype_size(x.dtype());
  return TensorView(begin, x.dtype(), {x.extent(0), count, x.extent(2), x.extent(3)},
                    {x.stride(0), step * x.stride(1), x.stride(2), x.stride(3)});
}

SampledReference::SampledReference(const AttentionData& data, int64_t rows) {
  ThreadTeam alone(1);
  *this = SampledReference(data, data.problem(), samples_of(data, rows), alone);
}

SampledReference::SampledReference(const AttentionData& data, const kernels::FlashProblem& problem,
                                   std::vector<TokenSample> samples, ThreadTeam& team)
    : samples_(std::move(samples)), tolerance_(tolerance_of(data, problem.scale)) {
  for (const TokenSample& sample : samples_) {
    const TensorView q = sample.of(data.q);
    const TensorView expected = expected_.emplace_back(Tensor::uninitialized(DType::kF64, q.shape()));
    const Shape rows_of_heads{q.extent(0), q.extent(1), q.extent(2), 1};
    const TensorView logs = expected_logs_.emplace_back(Tensor::uninitialized(DType::kF64, rows_of_heads));
    team.parallel_for(sample.count, 1, [&](IndexRange rows, int) {
      kernels::FlashProblem part = problem;
      part.query_tokens = rows.size();
      kernels::flash_attention_reference(part, q.slice(1, rows.begin, rows.end), data.block(),
                                         expected.slice(1, rows.begin, rows.end),
                                         logs.slice(1, rows.begin, rows.end).select(3, 0));
    });
  }
}

namespace {

// Of [B, S, H, 1] tensors: the largest difference, infinite where they differ and one is not finite.
double largest_difference(const TensorView& ours, const TensorView& theirs) {
  double largest = 0;
  for_each_row(theirs, [&](int64_t b, int64_t s, int64_t h) {
    const double x = element(ours, row_offset(ours, b, s, h)), y = element(theirs, row_offset(theirs, b, s, h));
    const bool same = x == y || (!std::isfinite(x) && !std::isfinite(y));
    const double difference = same ? 0 : std::abs(x - y);
    largest = std::max(largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
  });
  return largest;
}

}  // namespace

Verdict SampledReference::check(const TensorView& o, const TensorView& log_sum_exp) const {
  Verdict verdict;
  verdict.tolerance = tolerance_;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const TensorView ours = samples_[i].of(o), theirs = expected_[i];
    verdict.rows += samples_[i].count;
    for_each_row(theirs, [&](int64_t b, int64_t s, int64_t h) {
      const int64_t at = row_offset(ours, b, s, h), expected_at = row_offset(theirs, b, s, h);
      for (int64_t d = 0; d < theirs.extent(3); ++d) {
        const double expected = element(theirs, expected_at + d), value = element(ours, at + d);
        if (!std::isfinite(expected)) {
          ++verdict.nonfinite;
          if (std::isfinite(value)) ++verdict.nonfinite_missed;
          continue;
        }
        verdict.finite = verdict.finite && std::isfinite(value);
        const double error = std::isfinite(value) ? value - expected : std::numeric_limits<double>::infinity();
        difference += error * error;
        norm += expected * expected;
        verdict.max_abs = std::max(verdict.max_abs, std::abs(error));
      }
    });
  }
  for (size_t i = 0; i < samples_.size() && log_sum_exp; ++i) {
    const TensorView ours = samples_[i].of(log_sum_exp.split_axis(2, o.extent(2), 1));
    verdict.log_sum_exp_max_abs =
        std::max(verdict.log_sum_exp_max_abs.value_or(0), largest_difference(ours, expected_logs_[i]));
  }
  verdict.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  return verdict;
}

}  // namespace zoetrope::bench
