// Vectors of floats: loads and stores of F32 and BF16 rows with tails, accurate sums. Eight floats on AVX2, which every
// build requires; sixteen in files that are compiled for AVX-512 and chosen at run time. Each kind of file has a
// namespace of its own, so that the linker never confuses them; tests/dependencies/check_instruction_sets.py checks it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "tensor/half.h"

#ifdef __AVX512F__
#define ZOETROPE_SIMD avx512
#else
#define ZOETROPE_SIMD avx2
#endif

namespace zoetrope::kernels::simd {
inline namespace ZOETROPE_SIMD {

// Arithmetic is the compiler's: + − * / on Floats, element by element.
#ifdef __AVX512F__

constexpr int64_t kWidth = 16;
using Floats = __m512;

inline Floats set(float value) { return _mm512_set1_ps(value); }
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }    // a·b + c
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c − a·b
// The second operand where one is NaN.
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x·2^n for whole n; correct also where 2^n alone is out of range.
inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load(const BFloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
// x to nearest even as to_bfloat16 does, in the upper halves; NaN stays NaN.
inline __m512i bfloat16_bits(Floats x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
}
inline void store(BFloat16* p, Floats x) {
  const __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bfloat16_bits(x), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
inline Floats round_to_bfloat16(Floats x) {
  return _mm512_castsi512_ps(_mm512_and_si512(bfloat16_bits(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline double sum(Floats x) {
  const __m256 high = _mm512_extractf32x8_ps(x, 1), low = _mm512_castps512_ps256(x);
  return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(low), _mm512_cvtps_pd(high)));
}

#else

constexpr int64_t kWidth = 8;
using Floats = __m256;

inline Floats set(float value) { return _mm256_set1_ps(value); }
inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }    // a·b + c
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }  // c − a·b
// The second operand where one is NaN.
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x·2^n for whole n, in two steps, so that it is correct also where 2^n alone is out of range.
inline Floats scale_by_power(Floats x, Floats n) {
  const __m256i power = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(power, 1);
  const auto two_to = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return x * two_to(half) * two_to(_mm256_sub_epi32(power, half));
}

inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline Floats load(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
// x to nearest even as to_bfloat16 does, in the upper halves; NaN stays NaN.
inline __m256i bfloat16_bits(Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
inline void store(BFloat16* p, Floats x) {
  const __m256i high = _mm256_srli_epi32(bfloat16_bits(x), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline Floats round_to_bfloat16(Floats x) {
  return _mm256_castsi256_ps(_mm256_and_si256(bfloat16_bits(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline double sum(Floats x) {
  const __m256d pairs =
      _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif

// The first n < kWidth elements; the other lanes are zero, or are not written.
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

// body(offset, lanes) over [0, n) in vectors: whole vectors have a compile-time width, so that their loads and stores
// are plain moves.
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

// Σ f(x_i) over a row. A lane adds at most eight terms in float32 before they are added to a double, so the sum is
// accurate to about one ulp of float32 for any length; summing in double throughout costs two conversions per vector
// and gains nothing that survives the rounding of the result.
template <typename T, typename Term>
inline __attribute__((always_inline)) double row_sum(const T* x, int64_t n, Term&& term) {
  constexpr int64_t kChunk = 4 * 8 * kWidth;
  double total = 0;
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    Floats a = zero(), b = a, c = a, d = a;
    for (int64_t j = i; j < i + kChunk; j += 4 * kWidth) {
      a = term(load(x + j), a);
      b = term(load(x + j + kWidth), b);
      c = term(load(x + j + 2 * kWidth), c);
      d = term(load(x + j + 3 * kWidth), d);
    }
    total += sum((a + b) + (c + d));
  }
  Floats rest = zero();
  for (; i + kWidth <= n; i += kWidth) rest = term(load(x + i), rest);
  total += sum(rest);
  for (; i < n; ++i) total += term(set(to_float(x[i])), zero())[0];
  return total;
}

template <typename T>
double sum_of_squares(const T* x, int64_t n) {
  return row_sum(x, n, [](Floats v, Floats into) { return fma(v, v, into); });
}

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels::simd
