// Common to the instruction-set types of 256 bits: float32 vectors and exp2. Internal linkage, for avx*.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/flash_attention/vector_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx2Vectors {
  static constexpr int kLanes = 8;
  using Vec = __m256;

  static ZT_FLASH_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
  static ZT_FLASH_INLINE Vec load(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_FLASH_INLINE void store(float* to, Vec x) { _mm256_storeu_ps(to, x); }
  static ZT_FLASH_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static ZT_FLASH_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static ZT_FLASH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static ZT_FLASH_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }

  // Of operands of which one is NaN, the lower lane's counts.
  static ZT_FLASH_INLINE float reduce_max(Vec x) {
    __m128 y = _mm_max_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    y = _mm_max_ps(_mm_movehl_ps(y, y), y);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(y), y));
  }
  static ZT_FLASH_INLINE float reduce_add(Vec x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static ZT_FLASH_INLINE bool all_at_most(Vec x, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, set1(limit), _CMP_LE_OQ)) == 0xff;
  }
  static ZT_FLASH_INLINE Vec keep_lanes(Vec x, int count, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
    return _mm256_blendv_ps(set1(fill), x, _mm256_castsi256_ps(keep));
  }

  // 2^x = 2^n · 2^f, n the nearest integer, f in [−1/2, 1/2]. Adding kMagic leaves n + 127 in the low bits, so that a
  // shift gives the bits of 2^n: 0 for n = −127, ∞ for n = 128, where x is clamped. Weights that should be larger are
  // infinite, which the check of the sums finds. NaN stays NaN: the second operands of min and max win.
  template <int kDegree, int kCount>
  static ZT_FLASH_INLINE void exp2_of(Vec (&x)[kCount], const float (&c)[kDegree + 1]) {
    constexpr float kMagic = 0x1.8p23f + 127;
    Vec shifted[kCount], p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      x[i] = _mm256_max_ps(set1(-127.0f), _mm256_min_ps(set1(128.0f), x[i]));
      shifted[i] = add(x[i], set1(kMagic));
      x[i] = _mm256_sub_ps(x[i], _mm256_sub_ps(shifted[i], set1(kMagic)));
      p[i] = set1(c[kDegree]);
    }
#pragma GCC unroll 8
    for (int power = kDegree - 1; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) p[i] = _mm256_fmadd_ps(p[i], x[i], set1(c[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      x[i] = mul(p[i], _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted[i]), 23)));
    }
  }
  // 2^x · 2^e, e a whole number per row of kVectors vectors: the sum of both whole parts goes into the exponent's bits.
  template <int kDegree, int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled_of(Vec (&x)[kCount], const Vec (&e)[kRows], const float (&c)[kDegree + 1]) {
    static_assert(kCount == kRows * kVectors);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Vec whole = _mm256_round_ps(x[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const Vec f = _mm256_sub_ps(x[i], whole);
      Vec p = set1(c[kDegree]);
#pragma GCC unroll 8
      for (int power = kDegree - 1; power >= 0; --power) p = _mm256_fmadd_ps(p, f, set1(c[power]));
      const Vec power = _mm256_max_ps(set1(-127.0f), _mm256_min_ps(set1(128.0f), add(whole, e[i / kVectors])));
      const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
      x[i] = mul(p, _mm256_castsi256_ps(bits));
    }
  }
};

}  // namespace
}  // namespace zoetrope::kernels
