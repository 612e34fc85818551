// The float32 tile on AVX2 + FMA. bf16 inputs are converted when they are packed. Sixteen registers: 4 × 3
// accumulators, three key vectors, one query. Fraction of the peak at S = 4096, D = 128 on Golden Cove: 0.865; 6 × 2
// 0.84, or 0.856 with the weights of three rows at once; unrolling by 2 and 4 −0.5 to −5 points. The loss is in the
// multiplications (0.9 alone): the loop's own instructions compete with them for two of five ports.
#include <immintrin.h>

#include <cstdint>

#include "kernels/flash_attention/exp2_coefficients.h"
#include "kernels/flash_attention/vector_tile.h"

namespace zoetrope::kernels {
namespace {

struct Avx2 {
  static constexpr DType kOperand = DType::kF32;
  using Element = float;
  using Vec = __m256;
  using Operand = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kPair = 1;
  static constexpr int kQueryRows = 4;
  static constexpr int kKeyVectors = 3;
  static constexpr int kWeighRows = 1;
  static constexpr int kValueVectors = 3;
  static constexpr int kStepUnit = 1;
  static constexpr int value_rows(int width) { return width == 1 ? 10 : width == 2 ? 6 : 4; }

  static ZT_FLASH_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
  static ZT_FLASH_INLINE Vec load(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_FLASH_INLINE void store(float* to, Vec x) { _mm256_storeu_ps(to, x); }
  static ZT_FLASH_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static ZT_FLASH_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static ZT_FLASH_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static ZT_FLASH_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static ZT_FLASH_INLINE Operand operand(const Element* x) { return load(x); }
  static ZT_FLASH_INLINE Operand broadcast(const Element* x) { return _mm256_broadcast_ss(x); }
  static ZT_FLASH_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm256_fmadd_ps(a, b, acc); }

  static ZT_FLASH_INLINE float reduce_max(Vec x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
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
  template <int kCount>
  static ZT_FLASH_INLINE void exp2(Vec (&x)[kCount]) {
    constexpr float kMagic = 0x1.8p23f + 127;
    Vec shifted[kCount], p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      x[i] = _mm256_max_ps(set1(-127.0f), _mm256_min_ps(set1(128.0f), x[i]));
      shifted[i] = add(x[i], set1(kMagic));
      x[i] = _mm256_sub_ps(x[i], _mm256_sub_ps(shifted[i], set1(kMagic)));
      p[i] = set1(kExp2Degree5Nearest[5]);
    }
#pragma GCC unroll 8
    for (int power = 4; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) p[i] = _mm256_fmadd_ps(p[i], x[i], set1(kExp2Degree5Nearest[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      x[i] = mul(p[i], _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted[i]), 23)));
    }
  }
  // 2^x · 2^e, e a whole number per row of kVectors vectors: the sum of both whole parts goes into the exponent's bits.
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    static_assert(kCount == kRows * kVectors);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Vec whole = _mm256_round_ps(x[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const Vec f = _mm256_sub_ps(x[i], whole);
      Vec p = set1(kExp2Degree5Nearest[5]);
#pragma GCC unroll 8
      for (int power = 4; power >= 0; --power) p = _mm256_fmadd_ps(p, f, set1(kExp2Degree5Nearest[power]));
      const Vec power = _mm256_max_ps(set1(-127.0f), _mm256_min_ps(set1(128.0f), add(whole, e[i / kVectors])));
      const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
      x[i] = mul(p, _mm256_castsi256_ps(bits));
    }
  }
  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {set1(x)};
    exp2(all);
    return _mm256_cvtss_f32(all[0]);
  }

  static ZT_FLASH_INLINE Vec store_weights(Element* to, const Vec* p) {
    store(to, p[0]);
    store(to + kLanes, p[1]);
    store(to + 2 * kLanes, p[2]);
    return add(add(p[0], p[1]), p[2]);
  }
};

constexpr TileKernel kTile = {VectorTile<Avx2>::kShape, VectorTile<Avx2>::fold};

}  // namespace

const TileKernel& avx2_tile() { return kTile; }

}  // namespace zoetrope::kernels
