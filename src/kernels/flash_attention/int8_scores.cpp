#include "kernels/flash_attention/int8_scores.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/index_range.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;
constexpr int64_t kWidth = simd::kWidth;
constexpr uint32_t kKeyOffset = 0x80808080;  // 128 in each of four bytes

// One step of the butterfly between lanes that are kHalf apart: the lower lane gets a + b, the upper a − b.
template <int kHalf>
Floats butterfly(Floats x) {
  const Floats signs = kHalf == 1   ? _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1)
                       : kHalf == 2 ? _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1)
                                    : _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  const Floats other = kHalf == 1   ? _mm256_permute_ps(x, 0xb1)
                       : kHalf == 2 ? _mm256_permute_ps(x, 0x4e)
                                    : _mm256_permute2f128_ps(x, x, 0x01);
  return simd::fma(x, signs, other);
}

// `row` has zeros up to a whole vector.
void rotate(float* row, int64_t head_dim) {
  const int64_t block = rotated_block(head_dim);
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    Floats x = simd::load(row + i);
    if (block > 1) x = butterfly<1>(x);
    if (block > 2) x = butterfly<2>(x);
    if (block > 4) x = butterfly<4>(x);
    simd::store(row + i, x);
  }
  for (int64_t half = kWidth; half < block; half *= 2) {
    for (int64_t pair = 0; pair < head_dim; pair += 2 * half) {
      for (int64_t i = pair; i < pair + half; i += kWidth) {
        const Floats a = simd::load(row + i), b = simd::load(row + i + half);
        simd::store(row + i, a + b);
        simd::store(row + i + half, a - b);
      }
    }
  }
}

// The largest magnitude; magnitudes order as their bits do, and NaN comes last.
float largest_magnitude(const float* row, int64_t head_dim) {
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const __m256i bits = _mm256_castps_si256(simd::load(row + i));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  alignas(32) int32_t lanes[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  return std::bit_cast<float>(*std::max_element(lanes, lanes + kWidth));
}

// Rounds eight values to int8, which they fit.
__m256i rounded(Floats x, int8_t* to) {
  const __m256i words = _mm256_cvtps_epi32(x);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
  return words;
}

const BFloat16* row_of(const PackSource& source, int64_t key) {
  const int64_t row = source.index == nullptr ? key : source.index[key];
  return static_cast<const BFloat16*>(source.data) + row * source.stride;
}

}  // namespace

Int8Row int8_row(const BFloat16* x, const float* mean, int64_t head_dim, int8_t* to) {
  alignas(32) float row[kMostScoreTerms];
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const int64_t n = std::min(kWidth, head_dim - i);
    Floats value = n == kWidth ? simd::load(x + i) : simd::load(x + i, n);
    if (mean != nullptr) value = value - (n == kWidth ? simd::load(mean + i) : simd::load(mean + i, n));
    simd::store(row + i, value);
  }
  rotate(row, head_dim);
  const float most = largest_magnitude(row, head_dim);
  if (!std::isfinite(most)) {
    std::memset(to, 0, static_cast<size_t>(int8_row_bytes(head_dim)));
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const Int8Scale scale = int8_scale(most);
  const Floats factor = simd::set(scale.factor);
  alignas(32) int8_t bytes[kMostScoreTerms];
  __m256i sums = _mm256_setzero_si256();
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    sums = _mm256_add_epi32(sums, rounded(simd::load(row + i) * factor, bytes + i));
  }
  std::memcpy(to, bytes, static_cast<size_t>(int8_row_bytes(head_dim)));
  alignas(32) int32_t lanes[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return {scale.scale, sum};
}

float mean_product(const BFloat16* q, const float* mean, int64_t head_dim) {
  Floats sum = simd::zero();
  for (int64_t i = 0; i < head_dim; i += kWidth) {
    const int64_t n = std::min(kWidth, head_dim - i);
    sum = n == kWidth ? simd::fma(simd::load(q + i), simd::load(mean + i), sum)
                      : simd::fma(simd::load(q + i, n), simd::load(mean + i, n), sum);
  }
  return static_cast<float>(simd::sum(sum));
}

void pack_int8_keys(const TileShape& shape, const PackSource& source, const float* mean, int64_t tile, void* packed) {
  const int64_t begin = tile * shape.key_tile, end = std::min(begin + shape.key_tile, source.count);
  const int64_t steps = shape.steps(source.head_dim);
  alignas(32) int8_t bytes[kMostScoreTerms];
  for (int64_t panel = begin; panel < end; panel += shape.panel_keys) {
    auto* const words = static_cast<uint32_t*>(packed) + panel * shape.key_words(source.head_dim);
    for (int64_t j = 0; j < shape.panel_keys; ++j) {
      uint32_t* const to = words + j;
      float scale = 0;
      if (panel + j < source.count) {
        scale = int8_row(row_of(source, panel + j), mean, source.head_dim, bytes).scale;
      } else {
        std::memset(bytes, 0, static_cast<size_t>(4 * steps));
      }
      for (int64_t step = 0; step < steps; ++step) {
        uint32_t four;
        std::memcpy(&four, bytes + 4 * step, sizeof four);
        to[step * shape.panel_keys] = four ^ kKeyOffset;
      }
      to[steps * shape.panel_keys] = std::bit_cast<uint32_t>(scale);
    }
  }
}

void pack_int8_queries(const TileShape& shape, const PackSource& source, const float* mean, float scale_log2e,
                       int64_t begin, int64_t rows, const Int8Queries& to) {
  const float factor = scale_log2e / static_cast<float>(rotated_block(source.head_dim));
  for (int64_t i = 0; i < rows; ++i) {
    const BFloat16* q = row_of(source, begin + i);
    const Int8Row row = int8_row(q, nullptr, source.head_dim, to.rows + i * int8_row_bytes(source.head_dim));
    to.scales[i] = row.scale * factor;
    to.corrections[i] = -128 * row.sum;
    to.offsets[i] = mean_product(q, mean, source.head_dim) * scale_log2e;
  }
  for (int64_t i = rows; i < round_up(rows, shape.query_rows); ++i) {
    to.scales[i] = to.scales[rows - 1];
    to.corrections[i] = to.corrections[rows - 1];
    to.offsets[i] = to.offsets[rows - 1];
  }
}

double int8_weight_error(const PackSource& queries, const PackSource& keys, const float* mean, float scale_log2e) {
  constexpr int64_t kRows = 8, kMostKeys = 256, kFewestKeys = 16, kShare = 8;
  const int64_t head_dim = queries.head_dim, rows = std::min(kRows, queries.count);
  const int64_t count = std::min(keys.count, std::clamp(keys.count / kShare, kFewestKeys, kMostKeys));
  if (rows == 0 || count == 0) return 0;
  // The middle of each of `n` equal parts of `all`.
  const auto at = [](int64_t i, int64_t n, int64_t all) { return (2 * i + 1) * all / (2 * n); };
  struct Row {
    const BFloat16* q;
    int8_t values[kMostScoreTerms];
    float scale, offset;
    float exact[kMostKeys], rounded[kMostKeys];  // scores, to base 2
  };
  const auto sample = std::make_unique<Row[]>(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    Row& row = sample[static_cast<size_t>(i)];
    row.q = row_of(queries, at(i, rows, queries.count));
    row.scale = int8_row(row.q, nullptr, head_dim, row.values).scale / static_cast<float>(rotated_block(head_dim));
    row.offset = mean_product(row.q, mean, head_dim);
  }
  alignas(32) float key[kMostScoreTerms];
  int8_t values[kMostScoreTerms];
  for (int64_t j = 0; j < count; ++j) {
    const BFloat16* k = row_of(keys, at(j, count, keys.count));
    for (int64_t d = 0; d < head_dim; ++d) key[d] = to_float(k[d]);
    const float scale = int8_row(k, mean, head_dim, values).scale;
    for (int64_t i = 0; i < rows; ++i) {
      Row& row = sample[static_cast<size_t>(i)];
      int32_t sum = 0;
      for (int64_t d = 0; d < head_dim; ++d) sum += int32_t{row.values[d]} * int32_t{values[d]};
      row.exact[j] = mean_product(row.q, key, head_dim) * scale_log2e;
      row.rounded[j] = (static_cast<float>(sum) * scale * row.scale + row.offset) * scale_log2e;
    }
  }
  // Weights that add up to 1, of one row.
  const auto weights = [&](const float* scores, double* weight) {
    const double top = static_cast<double>(*std::max_element(scores, scores + count));
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += weight[j] = std::exp2(static_cast<double>(scores[j]) - top);
    for (int64_t j = 0; j < count; ++j) weight[j] /= sum;
  };
  double errors = 0, exact[kMostKeys], rounded[kMostKeys];
  for (int64_t i = 0; i < rows; ++i) {
    weights(sample[static_cast<size_t>(i)].exact, exact);
    weights(sample[static_cast<size_t>(i)].rounded, rounded);
    double error = 0, norm = 0;
    for (int64_t j = 0; j < count; ++j) {
      error += (rounded[j] - exact[j]) * (rounded[j] - exact[j]);
      norm += exact[j] * exact[j];
    }
    errors += error / norm;
  }
  return std::sqrt(errors / static_cast<double>(rows));
}

bool Int8Heads::take(double error) {
  if (!(error <= limit_)) {
    ++counts_.bf16_heads;
    return false;
  }
  ++counts_.int8_heads;
  counts_.int8_error = std::max(counts_.int8_error, error);
  return true;
}

void Int8Heads::add_to(TileCounts& counts) const {
  counts.int8_heads = counts_.int8_heads;
  counts.bf16_heads = counts_.bf16_heads;
  counts.int8_error = counts_.int8_error;
}

double int8_score_growth(int64_t head_dim) {
  const double rounding = std::sqrt(static_cast<double>(head_dim)) / (2 * static_cast<double>(kInt8Most));
  return 2 * ((1 + rounding) * (1 + rounding) - 1);
}

}  // namespace zoetrope::kernels
