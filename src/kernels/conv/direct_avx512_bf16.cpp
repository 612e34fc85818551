// The direct convolution with products of bf16 pairs (vdpbf16ps), which read the frames as they are stored.
#include "kernels/conv/direct_tile.h"
#include "kernels/conv/winograd_tile.h"

namespace zoetrope::kernels {
namespace {

struct Bf16Products : FloatProducts {
  static constexpr int kPair = 2;
  using Operand = __m512bh;
  using Element = uint16_t;
  static ZT_CONV_INLINE Operand operand(const uint16_t* x) { return reinterpret_cast<Operand>(_mm512_loadu_si512(x)); }
  static ZT_CONV_INLINE Operand broadcast(const uint16_t* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return reinterpret_cast<Operand>(_mm512_set1_epi32(pair));
  }
  static ZT_CONV_INLINE Vec widened(const uint16_t* x) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static ZT_CONV_INLINE void store_rounded(uint16_t* to, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm512_dpbf16_ps(acc, a, b); }
};

}  // namespace

// The finishing functions are AVX-512's, compiled there: they must not be instantiated here with wider instructions.
const DirectKernels& direct_avx512_bf16() {
  static const DirectKernels kernels = [] {
    DirectKernels k = with_winograd<Bf16Products>(direct_kernels<Bf16Products>());
    k.finish_f32 = direct_avx512().finish_f32;
    k.finish_bf16 = direct_avx512().finish_bf16;
    k.widen = direct_avx512().widen;
    return k;
  }();
  return kernels;
}

}  // namespace zoetrope::kernels
