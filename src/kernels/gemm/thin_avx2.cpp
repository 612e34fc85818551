// thin_gemm() on AVX2 with FMA, the build's floor.
#include <immintrin.h>

#include "kernels/gemm/thin_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Ints = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kSteps = 1;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 6;  // twelve sums, two weights and a value: fifteen of sixteen registers

  static ZT_THIN_INLINE Floats zero() { return _mm256_setzero_ps(); }
  static ZT_THIN_INLINE Floats set1(float value) { return _mm256_set1_ps(value); }
  static ZT_THIN_INLINE Floats load(const float* from) { return _mm256_load_ps(from); }
  static ZT_THIN_INLINE void store(float* to, Floats x) { _mm256_store_ps(to, x); }
  static ZT_THIN_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static ZT_THIN_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  static ZT_THIN_INLINE __m128i quarter(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static ZT_THIN_INLINE Ints load_quarters(const std::byte* const* column, int64_t offset) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(quarter(column[0] + offset)), quarter(column[4] + offset), 1);
  }
  static ZT_THIN_INLINE Ints unpack_low_32(Ints a, Ints b) { return _mm256_unpacklo_epi32(a, b); }
  static ZT_THIN_INLINE Ints unpack_high_32(Ints a, Ints b) { return _mm256_unpackhi_epi32(a, b); }
  static ZT_THIN_INLINE Ints unpack_low_64(Ints a, Ints b) { return _mm256_unpacklo_epi64(a, b); }
  static ZT_THIN_INLINE Ints unpack_high_64(Ints a, Ints b) { return _mm256_unpackhi_epi64(a, b); }

  static ZT_THIN_INLINE Floats as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }
  static ZT_THIN_INLINE Floats low_bf16(Ints pair) { return as_floats(_mm256_slli_epi32(pair, 16)); }
  static ZT_THIN_INLINE Floats high_bf16(Ints pair) {
    return as_floats(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
  // As to_bfloat16 does: to nearest even, NaN stays NaN.
  static ZT_THIN_INLINE Floats round_to_bf16(Ints bits) {
    const Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const Ints rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const Ints quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const Ints nan = _mm256_castps_si256(_mm256_cmp_ps(as_floats(bits), as_floats(bits), _CMP_UNORD_Q));
    return high_bf16(_mm256_blendv_epi8(rounded, quiet, nan));
  }
};

}  // namespace

const ThinKernel kThinAvx2 = ThinAlgorithm<Avx2>::kKernel;

}  // namespace zoetrope::kernels
