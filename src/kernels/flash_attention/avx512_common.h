// Common to the AVX-512 instruction-set types: float32 vectors and exp2. Internal linkage, for avx512*.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/flash_attention/exp2_coefficients.h"
#include "kernels/flash_attention/vector_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx512Vectors {
  static constexpr int kLanes = 16;
  using Vec = __m512;

  static ZT_FLASH_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
  static ZT_FLASH_INLINE Vec load(const float* x) { return _mm512_loadu_ps(x); }
  static ZT_FLASH_INLINE void store(float* to, Vec x) { _mm512_storeu_ps(to, x); }
  static ZT_FLASH_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static ZT_FLASH_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static ZT_FLASH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static ZT_FLASH_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static ZT_FLASH_INLINE float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }
  static ZT_FLASH_INLINE float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
  static ZT_FLASH_INLINE bool all_at_most(Vec x, float limit) {
    return _mm512_cmp_ps_mask(x, set1(limit), _CMP_LE_OQ) == 0xffff;
  }
  // The first `count` lanes of x (none where count ≤ 0, all where ≥ 16), `fill` in the others.
  static ZT_FLASH_INLINE Vec keep_lanes(Vec x, int count, float fill) {
    const unsigned mask = count <= 0 ? 0u : count >= kLanes ? 0xffffu : (1u << count) - 1u;
    return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), set1(fill), x);
  }

  // 2^x = 2^⌊x⌋ · 2^f, f in [0, 1]. vreduceps gives f, and 0 for ±∞; vscalefps takes the floor of its own operand and
  // ends in 0 and in ∞ by itself: no clamps, clean at both ends. Rounding to nearest and subtracting would need a
  // maximum against −∞ − −∞ and costs two instructions more, on cores whose two vector ports also multiply.
  template <int kDegree, int kCount>
  static ZT_FLASH_INLINE void exp2_of(Vec (&x)[kCount], const float (&c)[kDegree + 1]) {
    Vec f[kCount], p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      f[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      p[i] = set1(c[kDegree]);
    }
#pragma GCC unroll 8
    for (int power = kDegree - 1; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) p[i] = _mm512_fmadd_ps(p[i], f[i], set1(c[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = _mm512_scalef_ps(p[i], x[i]);
  }

  // 2^(x − ⌊x⌋) by kExp2Lines: one multiplication, where a polynomial as exact has three, and four instructions that
  // only AMD's cores run beside multiplications. The sum's last bits are the sixteenth; from |x| = 2^18 on they are
  // any, and scalef ends in 0 or ∞ with them. vreduceps leaves 0 of ±∞.
  static ZT_FLASH_INLINE Vec exp2_of_fraction(Vec x) {
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC, kSixteenths = 4 << 4;
    const Vec rest = _mm512_reduce_ps(x, kSixteenths | kDown);
    const __m512i line = _mm512_castps_si512(_mm512_add_round_ps(x, set1(0x1.8p19f), kDown));
    return fma(_mm512_permutexvar_ps(line, load(kExp2Lines.slope)), rest,
               _mm512_permutexvar_ps(line, load(kExp2Lines.value)));
  }
  template <int kCount>
  static ZT_FLASH_INLINE void exp2_by_lines(Vec (&x)[kCount]) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = _mm512_scalef_ps(exp2_of_fraction(x[i]), x[i]);
  }
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled_by_lines(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    static_assert(kCount == kRows * kVectors);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Vec whole = _mm512_roundscale_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      x[i] = _mm512_scalef_ps(exp2_of_fraction(x[i]), add(whole, e[i / kVectors]));
    }
  }

  // 2^x · 2^e, e a whole number per row of kVectors vectors. The whole part of x is taken before e is added: x + e
  // would be rounded, and could round up to a whole number where its fraction did not.
  template <int kDegree, int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled_of(Vec (&x)[kCount], const Vec (&e)[kRows], const float (&c)[kDegree + 1]) {
    static_assert(kCount == kRows * kVectors);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Vec whole = _mm512_roundscale_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      const Vec f = _mm512_sub_ps(x[i], whole);
      Vec p = set1(c[kDegree]);
#pragma GCC unroll 8
      for (int power = kDegree - 1; power >= 0; --power) p = _mm512_fmadd_ps(p, f, set1(c[power]));
      x[i] = _mm512_scalef_ps(p, add(whole, e[i / kVectors]));
    }
  }
};

}  // namespace
}  // namespace zoetrope::kernels
