#include "kernels/flash_attention/fixed_max.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/flash_attention/int8_attention.h"
#include "kernels/flash_attention/mask.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/simd.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Keys of one partial sum. Fixed, so that neither threads nor their number change a bit.
constexpr int64_t kChunkKeys = 512;
constexpr int64_t kWidth = simd::kWidth;

// ⌈log₂ x⌉ and ⌊log₂ x⌋ of a positive finite x.
int ceil_log2(float x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5f ? exponent - 1 : exponent;
}
int floor_log2(float x) {
  int exponent;
  std::frexp(x, &exponent);
  return exponent - 1;
}

// What a sum of squares may have lost where they fall below the smallest float32.
float lost_squares(int64_t head_dim) { return static_cast<float>(head_dim) * std::numeric_limits<float>::denorm_min(); }

// The larger one; NaN where either is.
float maximum(float a, float b) { return a > b || std::isnan(a) ? a : b; }

float sum(simd::Floats x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// Sums over the keys of a chunk, some elements of the head at a time, so that they stay in registers.
template <int kVectors, typename T>
void add_elements(const T* const* rows, int64_t count, int64_t d, float* total) {
  simd::Floats acc[kVectors];
  for (simd::Floats& x : acc) x = _mm256_setzero_ps();
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < kVectors; ++i) acc[i] = _mm256_add_ps(acc[i], simd::load(rows[j] + d + i * kWidth));
  }
  for (int64_t i = 0; i < kVectors; ++i) simd::store(total + d + i * kWidth, acc[i]);
}

template <typename T>
void add_keys(const T* const* rows, int64_t count, int64_t head_dim, float* total) {
  int64_t d = 0;
  for (; d + 8 * kWidth <= head_dim; d += 8 * kWidth) add_elements<8>(rows, count, d, total);
  for (; d + kWidth <= head_dim; d += kWidth) add_elements<1>(rows, count, d, total);
  for (; d < head_dim; ++d) {
    float one = 0;
    for (int64_t j = 0; j < count; ++j) one += to_float(rows[j][d]);
    total[d] = one;
  }
}

// max ‖k − k̄‖² and max |v| over the keys of a chunk.
template <typename T>
void extend(const T* const* keys, const T* const* values, int64_t count, int64_t head_dim, const float* mean,
            float& square, float& value) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  // Bits of magnitudes order as integers do, and those of NaN come last: one maximum that keeps NaN.
  __m256i top = _mm256_setzero_si256();
  for (int64_t j = 0; j < count; ++j) {
    simd::Floats distance[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t d = 0;
    for (; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
      for (int64_t i = 0; i < 2; ++i) {
        const simd::Floats x = _mm256_sub_ps(simd::load(keys[j] + d + i * kWidth), simd::load(mean + d + i * kWidth));
        distance[i] = simd::fma(x, x, distance[i]);
        const __m256 size = _mm256_and_ps(simd::load(values[j] + d + i * kWidth), magnitude);
        top = _mm256_max_epi32(top, _mm256_castps_si256(size));
      }
    }
    float one = sum(_mm256_add_ps(distance[0], distance[1]));
    for (; d < head_dim; ++d) {
      const float x = to_float(keys[j][d]) - mean[d];
      one += x * x;
      value = maximum(value, std::abs(to_float(values[j][d])));
    }
    square = maximum(square, one);
  }
  alignas(32) float lanes[kWidth];
  simd::store(lanes, _mm256_castsi256_ps(top));
  for (const float lane : lanes) value = maximum(value, lane);
}

template <typename T>
const T* row_of(const TensorView& x, int64_t b, int64_t token, int64_t h) {
  return x.data<const T>() + b * x.stride(0) + token * x.stride(1) + h * x.stride(2);
}

// The record of a head in statistics [B, H, 3 + D].
float* record(const TensorView& statistics, int64_t b, int64_t h) {
  return statistics.data<float>() + b * statistics.stride(0) + h * statistics.stride(1);
}

// One pass over the chunks of all heads on the team: body(folded head, chunk, valid keys' rows of k and v, their
// number).
template <typename T, typename Body>
void for_chunks(Stream& stream, const FlashProblem& p, const KeyBlock& block, Body&& body) {
  const int64_t keys = block.k.extent(1), chunks = ceil_div(keys, kChunkKeys);
  const Mask mask(p, block);
  stream.team().parallel_for(p.batch * p.heads * chunks, 1, [&](IndexRange range, int) {
    for (int64_t item = range.begin; item < range.end; ++item) {
      const int64_t head = item / chunks, chunk = item % chunks, b = head / p.heads, h = head % p.heads;
      const T* k[kChunkKeys];
      const T* v[kChunkKeys];
      int64_t count = 0;
      for (int64_t j = chunk * kChunkKeys; j < std::min(keys, (chunk + 1) * kChunkKeys); ++j) {
        if (!mask.valid(b, j)) continue;
        k[count] = row_of<T>(block.k, b, j, h);
        v[count++] = row_of<T>(block.v, b, j, h);
      }
      body(head, chunk, k, v, count);
    }
  });
}

// The number of valid keys of each head, and with `center` their mean. `parts`: a record of each chunk.
template <typename T>
void measure_means(Stream& stream, const FlashProblem& p, const KeyBlock& block, bool center, float* parts,
                   const TensorView& out) {
  const int64_t chunks = ceil_div(block.k.extent(1), kChunkKeys), floats = statistics_floats(p.head_dim);
  for_chunks<T>(stream, p, block, [&](int64_t head, int64_t chunk, auto& k, auto&, int64_t count) {
    float* part = parts + (head * chunks + chunk) * floats;
    part[kStatCount] = static_cast<float>(count);
    if (center) add_keys<T>(k, count, p.head_dim, part + kStatMean);
  });
  for (int64_t head = 0; head < p.batch * p.heads; ++head) {
    float* into = record(out, head / p.heads, head % p.heads);
    double n = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) n += static_cast<double>(parts[(head * chunks + chunk) * floats]);
    into[kStatCount] = static_cast<float>(n);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      double mean = 0;
      for (int64_t chunk = 0; chunk < chunks && center; ++chunk)
        mean += static_cast<double>(parts[(head * chunks + chunk) * floats + kStatMean + d]);
      into[kStatMean + d] = n > 0 ? static_cast<float>(mean / n) : 0.0f;
    }
  }
}

// Records of the chunks of all heads, in the stream's scratch.
float* chunk_records(Stream& stream, const FlashProblem& p, const KeyBlock& block) {
  const int64_t chunks = ceil_div(block.k.extent(1), kChunkKeys);
  const auto floats = static_cast<size_t>(p.batch * p.heads * chunks * statistics_floats(p.head_dim));
  return static_cast<float*>(stream.scratch().allocate(floats * sizeof(float)));
}

template <typename T>
void measure(Stream& stream, const FlashProblem& p, const KeyBlock& block, const TensorView& out) {
  const int64_t heads = p.batch * p.heads, chunks = ceil_div(block.k.extent(1), kChunkKeys);
  const int64_t floats = statistics_floats(p.head_dim);
  const Arena::Scope scope(stream.scratch());
  float* const parts = chunk_records(stream, p, block);  // later folded into one a head
  measure_means<T>(stream, p, block, p.center_keys, parts, out);
  const auto record_of = [&](int64_t head) { return record(out, head / p.heads, head % p.heads); };
  for_chunks<T>(stream, p, block, [&](int64_t head, int64_t chunk, auto& k, auto& v, int64_t count) {
    float* part = parts + (head * chunks + chunk) * floats;
    float square = 0, value = 0;
    extend<T>(k, v, count, p.head_dim, record_of(head) + kStatMean, square, value);
    part[kStatRadius] = square;
    part[kStatValueMaximum] = value;
  });
  for (int64_t head = 0; head < heads; ++head) {
    float square = 0, value = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* part = parts + (head * chunks + chunk) * floats;
      square = maximum(square, part[kStatRadius]);
      value = maximum(value, part[kStatValueMaximum]);
    }
    record_of(head)[kStatRadius] = std::sqrt(square + lost_squares(p.head_dim));
    record_of(head)[kStatValueMaximum] = value;
  }
}

// q·k̄ and ‖q‖².
template <typename T>
void row_products(const T* q, const float* mean, int64_t head_dim, float& dot, float& square) {
  simd::Floats dots[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, squares[2] = {dots[0], dots[0]};
  int64_t d = 0;
  for (; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
    for (int64_t i = 0; i < 2; ++i) {
      const simd::Floats x = simd::load(q + d + i * kWidth);
      dots[i] = simd::fma(x, simd::load(mean + d + i * kWidth), dots[i]);
      squares[i] = simd::fma(x, x, squares[i]);
    }
  }
  dot = sum(_mm256_add_ps(dots[0], dots[1]));
  square = sum(_mm256_add_ps(squares[0], squares[1]));
  for (; d < head_dim; ++d) {
    const float x = to_float(q[d]);
    dot += x * mean[d];
    square += x * x;
  }
}

// The multiple of q nearest to x, q so large that x − E keeps all its bits for every |E| < 2^8. Any constant near c
// will do as an offset; a state's reference must be the one that was used.
float with_headroom_for_exponent(float x) {
  const int exponent = floor_log2(std::max(std::abs(x), 256.0f)) + 1 - 23;
  return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

}  // namespace

OffsetBound::OffsetBound(const FlashProblem& problem, const TensorView& all, int64_t b, int64_t h)
    : dtype_(problem.dtype),
      head_dim_(problem.head_dim),
      mean_(record(all, b, h) + kStatMean),
      scale_log2e_(static_cast<float>(static_cast<double>(problem.scale) * kLog2E)) {
  const float* statistics = record(all, b, h);
  // What rounding may add to |t − c|: both are sums of D products, in another order, with errors of up to D ulp of
  // ‖q‖·‖k̄‖ where keys share a large offset.
  double square = 0;
  for (int64_t d = 0; d < head_dim_; ++d) square += static_cast<double>(mean_[d]) * static_cast<double>(mean_[d]);
  const double rounding = std::sqrt(square) * static_cast<double>(head_dim_ + 8) * 0x1p-24;
  const double growth = problem.int8 ? int8_score_growth(head_dim_) : 0;
  radius_log2e_ = (statistics[kStatRadius] * static_cast<float>(1 + growth) + static_cast<float>(rounding)) *
                  std::abs(scale_log2e_);
  const float n = statistics[kStatCount], value = statistics[kStatValueMaximum];
  if (!(n > 0) || !(value < kInfinity) || !(radius_log2e_ < kInfinity)) return;
  const int least_up = problem.int8 ? ceil_log2(kInt8Most) : 0;  // values are multiplied before their scale
  const int up = value > 0 ? std::max(least_up, ceil_log2(value)) : 0;
  const int down = value > 0 ? std::min(0, floor_log2(value)) : 0;
  constexpr int kHeadroomBelow = 102;  // −126 + 24 bits
  const int headroom = 126 - ceil_log2(n) - up, bound = headroom + kHeadroomBelow + down,
            bound_plain = kHeadroomBelow + down;
  headroom_ = static_cast<float>(headroom);
  // Below its centre, a row's largest exponent is by at most this part of β.
  const double below = problem.center_keys ? growth : 1;
  most_safe_ = std::floor(static_cast<float>(bound / (1 + below)));
  if (bound_plain < 0) return;
  most_plain_ = below > 0 ? std::floor(static_cast<float>(std::min<double>(headroom, bound_plain / below)))
                          : static_cast<float>(headroom);
}

RowMode OffsetBound::rows(const void* q, int64_t stride, int64_t count, float* center, float* exponent) const {
  if (most_safe_ < 0) return RowMode::kOnline;
  RowMode mode = RowMode::kOnline;
  with_compute_type(dtype_, "q", [&](auto tag) {
    using T = typename decltype(tag)::type;
    mode = rows_of(static_cast<const T*>(q), stride, count, center, exponent);
  });
  return mode;
}

template <typename T>
RowMode OffsetBound::rows_of(const T* q, int64_t stride, int64_t count, float* center, float* exponent) const {
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    float dot, square;
    row_products(q + i * stride, mean_, head_dim_, dot, square);
    const float beta = std::ceil(std::sqrt(square + lost_squares(head_dim_)) * radius_log2e_);
    center[i] = dot * scale_log2e_;
    exponent[i] = headroom_ - beta;
    most = maximum(most, beta);
    finite = finite && std::abs(center[i]) < kInfinity;
  }
  if (!finite || !(most <= most_safe_)) return RowMode::kOnline;
  if (most <= most_plain_) return RowMode::kPlain;
  for (int64_t i = 0; i < count; ++i) center[i] = with_headroom_for_exponent(center[i]);
  return RowMode::kExponent;
}

namespace {

TensorView records(Stream& stream, const FlashProblem& problem) {
  const Shape shape{problem.batch, problem.heads, statistics_floats(problem.head_dim)};
  return {stream.scratch().allocate(static_cast<size_t>(shape.size()) * sizeof(float)), DType::kF32, shape};
}

}  // namespace

TensorView means_of(Stream& stream, const FlashProblem& problem, const KeyBlock& block) {
  const TensorView means = records(stream, problem);
  const Arena::Scope scope(stream.scratch());
  with_compute_type(problem.dtype, "k", [&](auto tag) {
    measure_means<typename decltype(tag)::type>(stream, problem, block, true, chunk_records(stream, problem, block),
                                                means);
  });
  return means;
}

TensorView statistics_of(Stream& stream, const FlashProblem& problem, const KeyBlock& block) {
  if (problem.softmax != Softmax::kFixedMax || block.statistics) return block.statistics;
  const TensorView own = records(stream, problem);
  measure_keys(stream, problem, block, own);
  return own;
}

void measure_keys(Stream& stream, const FlashProblem& problem, const KeyBlock& block, const TensorView& out) {
  with_compute_type(problem.dtype, "k",
                    [&](auto tag) { measure<typename decltype(tag)::type>(stream, problem, block, out); });
}

void combine_statistics(std::span<const TensorView> parts, const TensorView& into) {
  const int64_t head_dim = into.extent(2) - kStatMean;
  for (int64_t b = 0; b < into.extent(0); ++b) {
    for (int64_t h = 0; h < into.extent(1); ++h) {
      float* all = record(into, b, h);
      double n = 0;
      for (const TensorView& part : parts) n += static_cast<double>(record(part, b, h)[kStatCount]);
      for (int64_t d = kStatMean; d < kStatMean + head_dim; ++d) {
        double mean = 0;
        for (const TensorView& part : parts) {
          const float* one = record(part, b, h);
          if (one[kStatCount] != 0) mean += static_cast<double>(one[kStatCount]) * static_cast<double>(one[d]);
        }
        all[d] = n > 0 ? static_cast<float>(mean / n) : 0.0f;
      }
      float radius = 0, value = 0;
      for (const TensorView& part : parts) {
        const float* one = record(part, b, h);
        if (one[kStatCount] == 0) continue;
        double square = 0;
        for (int64_t d = kStatMean; d < kStatMean + head_dim; ++d) {
          const double x = static_cast<double>(one[d]) - static_cast<double>(all[d]);
          square += x * x;
        }
        radius = maximum(radius, one[kStatRadius] + static_cast<float>(std::sqrt(square)));
        value = maximum(value, one[kStatValueMaximum]);
      }
      all[kStatCount] = static_cast<float>(n);
      all[kStatRadius] = radius;
      all[kStatValueMaximum] = value;
    }
  }
}

}  // namespace zoetrope::kernels
