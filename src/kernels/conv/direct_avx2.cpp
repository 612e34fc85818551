// The direct convolution on AVX2, the build's floor. 4 pixels × 3 vectors: 12 accumulators of 16 registers.
#include <immintrin.h>

#include <cstdint>

#include "kernels/conv/direct_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx2Conv {
  static constexpr int kLanes = 8;
  static constexpr int kPixels = 4;
  static constexpr int kPair = 1;
  using Vec = __m256;
  using Operand = __m256;
  using Element = float;
  struct Half {
    uint16_t bits;
  };
  struct Whole {};

  static ZT_CONV_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static ZT_CONV_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
  static ZT_CONV_INLINE Vec load(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_CONV_INLINE void store(float* to, Vec x) { _mm256_storeu_ps(to, x); }
  static ZT_CONV_INLINE Operand operand(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_CONV_INLINE Operand broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm256_fmadd_ps(a, b, acc); }
  static ZT_CONV_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static ZT_CONV_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static ZT_CONV_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static ZT_CONV_INLINE Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static ZT_CONV_INLINE Vec negative(Vec x) { return _mm256_xor_ps(x, set1(-0.0f)); }
  static ZT_CONV_INLINE float sum(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static ZT_CONV_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
  // min and max return their second operand on NaN: x goes second.
  static ZT_CONV_INLINE Vec clamp(Vec x, float low, float high) {
    return _mm256_min_ps(set1(high), _mm256_max_ps(set1(low), x));
  }
  static ZT_CONV_INLINE Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // In two halves, so that results near the ends of the range stay right.
  static ZT_CONV_INLINE Vec times_two_to(Vec x, Vec n) {
    const __m256i power = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(power, 1);
    const auto two_to = [](__m256i e) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return mul(mul(x, two_to(half)), two_to(_mm256_sub_epi32(power, half)));
  }

  static ZT_CONV_INLINE Vec keep(Vec x, Whole) { return x; }
  static ZT_CONV_INLINE Vec keep(Vec x, int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane)));
  }
  static ZT_CONV_INLINE Vec load(const float* x, Whole) { return load(x); }
  static ZT_CONV_INLINE Vec load(const float* x, int count) {
    float lanes[kLanes] = {};
    __builtin_memcpy(lanes, x, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
  }
  static ZT_CONV_INLINE void store(float* to, Vec x, Whole) { store(to, x); }
  static ZT_CONV_INLINE void store(float* to, Vec x, int count) {
    float lanes[kLanes];
    store(lanes, x);
    __builtin_memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
  }
  static ZT_CONV_INLINE Vec rounded(Vec x, const float*) { return x; }

  static ZT_CONV_INLINE Vec load(const Half* x, Whole) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static ZT_CONV_INLINE Vec load(const Half* x, int count) {
    Half lanes[kLanes] = {};
    __builtin_memcpy(lanes, x, static_cast<size_t>(count) * sizeof(Half));
    return load(lanes, Whole{});
  }
  // The bits of bf16 in the upper half of each lane: to nearest even; NaN stays NaN.
  static ZT_CONV_INLINE __m256i rounded_bits(Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
  static ZT_CONV_INLINE Vec rounded(Vec x, const Half*) {
    return _mm256_castsi256_ps(_mm256_and_si256(rounded_bits(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static ZT_CONV_INLINE void store(Half* to, Vec x, Whole) {
    const __m256i high = _mm256_srli_epi32(rounded_bits(x), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static ZT_CONV_INLINE void store(Half* to, Vec x, int count) {
    Half lanes[kLanes];
    store(lanes, x, Whole{});
    __builtin_memcpy(to, lanes, static_cast<size_t>(count) * sizeof(Half));
  }
  static ZT_CONV_INLINE float widen(Half x) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<uint32_t>(x.bits) << 16))));
  }
};

constexpr DirectKernels kKernels = direct_kernels<Avx2Conv, Avx2Conv>();

}  // namespace

const DirectKernels& direct_avx2() { return kKernels; }

}  // namespace zoetrope::kernels
