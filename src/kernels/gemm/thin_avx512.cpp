// thin_gemm() on AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#include "kernels/gemm/thin_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kSteps = 4;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 12;

  static ZT_THIN_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static ZT_THIN_INLINE Floats set1(float value) { return _mm512_set1_ps(value); }
  static ZT_THIN_INLINE Floats load(const float* from) { return _mm512_load_ps(from); }
  static ZT_THIN_INLINE void store(float* to, Floats x) { _mm512_store_ps(to, x); }
  static ZT_THIN_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static ZT_THIN_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

  static ZT_THIN_INLINE __m128i quarter(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static ZT_THIN_INLINE Ints load_quarters(const std::byte* const* column, int64_t offset) {
    Ints all = _mm512_castsi128_si512(quarter(column[0] + offset));
    all = _mm512_inserti32x4(all, quarter(column[4] + offset), 1);
    all = _mm512_inserti32x4(all, quarter(column[8] + offset), 2);
    return _mm512_inserti32x4(all, quarter(column[12] + offset), 3);
  }
  static ZT_THIN_INLINE Ints unpack_low_32(Ints a, Ints b) { return _mm512_unpacklo_epi32(a, b); }
  static ZT_THIN_INLINE Ints unpack_high_32(Ints a, Ints b) { return _mm512_unpackhi_epi32(a, b); }
  static ZT_THIN_INLINE Ints unpack_low_64(Ints a, Ints b) { return _mm512_unpacklo_epi64(a, b); }
  static ZT_THIN_INLINE Ints unpack_high_64(Ints a, Ints b) { return _mm512_unpackhi_epi64(a, b); }

  static ZT_THIN_INLINE Floats as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }
  static ZT_THIN_INLINE Floats low_bf16(Ints pair) { return as_floats(_mm512_slli_epi32(pair, 16)); }
  static ZT_THIN_INLINE Floats high_bf16(Ints pair) {
    return as_floats(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  // As to_bfloat16 does: to nearest even, NaN stays NaN.
  static ZT_THIN_INLINE Floats round_to_bf16(Ints bits) {
    const Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Ints rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(as_floats(bits), as_floats(bits), _CMP_UNORD_Q);
    return high_bf16(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)));
  }
};

}  // namespace

const ThinKernel kThinAvx512 = ThinAlgorithm<Avx512>::kKernel;

}  // namespace zoetrope::kernels
