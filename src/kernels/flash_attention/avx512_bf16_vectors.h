// bf16 vectors of AVX-512-BF16: products of bf16 pairs into float32 (vdpbf16ps), weights rounded to bf16 before they
// multiply the values, sums of the rounded weights. Internal linkage, for avx512_bf16.cpp and amx_bf16.cpp only.
#pragma once

#include "kernels/flash_attention/avx512_common.h"
#include "kernels/flash_attention/exp2_coefficients.h"

namespace zoetrope::kernels {
namespace {

struct Avx512Bf16 : Avx512Vectors {
  static constexpr DType kOperand = DType::kBF16;
  using Element = uint16_t;
  using Operand = __m512bh;
  static constexpr int kPair = 2;
  static constexpr int kQueryRows = 4;
  static constexpr int kKeyVectors = 4;
  static constexpr bool kWeighBetween = true;
  static constexpr int kValueVectors = 4;
  static constexpr int kStepUnit = 1;
  static constexpr int value_rows(int width) { return width <= 2 ? 8 : 4; }

  static ZT_FLASH_INLINE Operand operand(const Element* x) { return (__m512bh)_mm512_loadu_si512(x); }
  static ZT_FLASH_INLINE Operand broadcast(const Element* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static ZT_FLASH_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm512_dpbf16_ps(acc, a, b); }
  // Lost: fixed-point numbers whose bits become those of bf16 by a table of 64 (vpermi2w), half as many instructions.
  // On Zen 5 a tile takes 0.5 to 1 % less, and the error of its output is 1.2 times as large.
  template <int kCount>
  static ZT_FLASH_INLINE void exp2(Vec (&x)[kCount]) {
    exp2_of<3>(x, kExp2Degree3);
  }
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    exp2_scaled_of<3, kVectors>(x, e, kExp2Degree3);
  }
  // For the rare rescaling: o and the sums share the factor, so its error cancels.
  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {set1(x)};
    exp2_of<5>(all, kExp2Degree5);
    return _mm512_cvtss_f32(all[0]);
  }

  // Two neighbouring key vectors are rounded into one, in order. A product with ones sums the stored pairs.
  static ZT_FLASH_INLINE Vec store_weights(Element* to, const Vec* p) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    const __m512bh low = _mm512_cvtne2ps_pbh(p[1], p[0]), high = _mm512_cvtne2ps_pbh(p[3], p[2]);
    _mm512_storeu_si512(to, (__m512i)low);
    _mm512_storeu_si512(to + 2 * kLanes, (__m512i)high);
    return add(_mm512_dpbf16_ps(set1(0), low, ones), _mm512_dpbf16_ps(set1(0), high, ones));
  }
};

}  // namespace
}  // namespace zoetrope::kernels
