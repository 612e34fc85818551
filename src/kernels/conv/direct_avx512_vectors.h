// Float32 products on AVX-512 (F, BW, DQ, VL) for the direct convolution. For direct_avx512*.cpp only.
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

  static ZT_CONV_INLINE Vec zero() { return _mm512_setzero_ps(); }
  static ZT_CONV_INLINE Vec load(const float* x) { return _mm512_loadu_ps(x); }
  static ZT_CONV_INLINE void store(float* to, Vec x) { _mm512_storeu_ps(to, x); }
  static ZT_CONV_INLINE Operand operand(const float* x) { return _mm512_loadu_ps(x); }
  static ZT_CONV_INLINE Operand broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm512_fmadd_ps(a, b, acc); }
  static ZT_CONV_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static ZT_CONV_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
};

}  // namespace
}  // namespace zoetrope::kernels
