// Eight floats at a time on AVX2, the build's floor: loads and stores of F32 and BF16 rows with tails, sums that stay
// accurate. For kernels bound by memory; what is bound by arithmetic has files per instruction set of its own.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "tensor/half.h"

namespace zoetrope::kernels::simd {

constexpr int64_t kWidth = 8;
using Floats = __m256;

inline Floats set(float value) { return _mm256_set1_ps(value); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline Floats load(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
// Round to nearest even as to_bfloat16 does; NaN stays NaN.
inline void store(BFloat16* p, Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// The first n < 8 elements; the other lanes are zero, or are not written.
template <typename T>
Floats load(const T* p, int64_t n) {
  T lanes[kWidth] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}
template <typename T>
void store(T* p, Floats x, int64_t n) {
  T lanes[kWidth];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// body(offset, lanes) over [0, n) in vectors: whole vectors come with a compile-time width, so that load and store
// below are plain moves.
struct Whole {};
template <typename T>
Floats load_at(const T* p, int64_t i, Whole) {
  return load(p + i);
}
template <typename T>
Floats load_at(const T* p, int64_t i, int64_t n) {
  return load(p + i, n);
}
template <typename T>
void store_at(T* p, int64_t i, Floats x, Whole) {
  store(p + i, x);
}
template <typename T>
void store_at(T* p, int64_t i, Floats x, int64_t n) {
  store(p + i, x, n);
}
template <typename Body>
inline __attribute__((always_inline)) void for_vectors(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, Whole{});
  if (i < n) body(i, n - i);
}

inline double sum(Floats x) {
  const __m256d pairs =
      _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Σ f(x_i) over a row. A lane adds at most eight terms in float32 before it goes into a double, so the sum is good to
// about one ulp of float32 for any length; summing in double throughout costs two conversions a vector and gains
// nothing that survives the rounding of the result.
template <typename T, typename Term>
inline __attribute__((always_inline)) double row_sum(const T* x, int64_t n, Term&& term) {
  constexpr int64_t kChunk = 4 * 8 * kWidth;
  double total = 0;
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    Floats a = _mm256_setzero_ps(), b = a, c = a, d = a;
    for (int64_t j = i; j < i + kChunk; j += 4 * kWidth) {
      a = term(load(x + j), a);
      b = term(load(x + j + kWidth), b);
      c = term(load(x + j + 2 * kWidth), c);
      d = term(load(x + j + 3 * kWidth), d);
    }
    total += sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
  }
  Floats rest = _mm256_setzero_ps();
  for (; i + kWidth <= n; i += kWidth) rest = term(load(x + i), rest);
  total += sum(rest);
  for (; i < n; ++i) total += _mm256_cvtss_f32(term(_mm256_set1_ps(to_float(x[i])), _mm256_setzero_ps()));
  return total;
}

template <typename T>
double sum_of_squares(const T* x, int64_t n) {
  return row_sum(x, n, [](Floats v, Floats into) { return fma(v, v, into); });
}

}  // namespace zoetrope::kernels::simd
