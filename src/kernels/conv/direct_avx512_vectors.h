// Float32 and bf16 storage on AVX-512 (F, BW, DQ, VL) for the direct convolution. Internal linkage, for
// direct_avx512*.cpp only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/conv/direct_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx512Conv {
  static constexpr int kLanes = 16;
  static constexpr int kPixels = 8;
  static constexpr int kPair = 1;
  using Vec = __m512;
  using Operand = __m512;
  using Element = float;
  struct Half {
    uint16_t bits;
  };
  struct Whole {};

  static ZT_CONV_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static ZT_CONV_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
  static ZT_CONV_INLINE Vec load(const float* x) { return _mm512_loadu_ps(x); }
  static ZT_CONV_INLINE void store(float* to, Vec x) { _mm512_storeu_ps(to, x); }
  static ZT_CONV_INLINE Operand operand(const float* x) { return _mm512_loadu_ps(x); }
  static ZT_CONV_INLINE Operand broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm512_fmadd_ps(a, b, acc); }
  static ZT_CONV_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static ZT_CONV_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static ZT_CONV_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static ZT_CONV_INLINE Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static ZT_CONV_INLINE Vec negative(Vec x) { return _mm512_xor_ps(x, set1(-0.0f)); }
  static ZT_CONV_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  static ZT_CONV_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
  // min and max return their second operand on NaN: x goes second.
  static ZT_CONV_INLINE Vec clamp(Vec x, float low, float high) {
    return _mm512_min_ps(set1(high), _mm512_max_ps(set1(low), x));
  }
  static ZT_CONV_INLINE Vec round(Vec x) { return _mm512_roundscale_ps(x, 8); }
  static ZT_CONV_INLINE Vec times_two_to(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }

  static ZT_CONV_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static ZT_CONV_INLINE Vec keep(Vec x, Whole) { return x; }
  static ZT_CONV_INLINE Vec keep(Vec x, int count) { return _mm512_maskz_mov_ps(first(count), x); }
  static ZT_CONV_INLINE Vec load(const float* x, Whole) { return load(x); }
  static ZT_CONV_INLINE Vec load(const float* x, int count) { return _mm512_maskz_loadu_ps(first(count), x); }
  static ZT_CONV_INLINE void store(float* to, Vec x, Whole) { store(to, x); }
  static ZT_CONV_INLINE void store(float* to, Vec x, int count) { _mm512_mask_storeu_ps(to, first(count), x); }
  static ZT_CONV_INLINE Vec rounded(Vec x, const float*) { return x; }

  static ZT_CONV_INLINE Vec widened(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static ZT_CONV_INLINE Vec load(const Half* x, Whole) {
    return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  static ZT_CONV_INLINE Vec load(const Half* x, int count) {
    return widened(_mm256_maskz_loadu_epi16(first(count), x));
  }
  // The bits of bf16 in the upper half of each lane: to nearest even; NaN stays NaN.
  static ZT_CONV_INLINE __m512i rounded_bits(Vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  }
  static ZT_CONV_INLINE Vec rounded(Vec x, const Half*) {
    return _mm512_castsi512_ps(_mm512_and_si512(rounded_bits(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static ZT_CONV_INLINE __m256i halves(Vec x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(x), 16)); }
  static ZT_CONV_INLINE void store(Half* to, Vec x, Whole) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(x));
  }
  static ZT_CONV_INLINE void store(Half* to, Vec x, int count) {
    _mm256_mask_storeu_epi16(to, first(count), halves(x));
  }
  static ZT_CONV_INLINE float widen(Half x) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<uint32_t>(x.bits) << 16))));
  }
};

}  // namespace
}  // namespace zoetrope::kernels
