// The direct convolution on AVX2, the build's floor. 4 pixels × 3 vectors: 12 accumulators of 16 registers.
#include <immintrin.h>

#include <cstdint>

#include "kernels/conv/direct_finish.h"
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

  static ZT_CONV_INLINE Vec zero() { return _mm256_setzero_ps(); }
  static ZT_CONV_INLINE Vec load(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_CONV_INLINE void store(float* to, Vec x) { _mm256_storeu_ps(to, x); }
  static ZT_CONV_INLINE Operand operand(const float* x) { return _mm256_loadu_ps(x); }
  static ZT_CONV_INLINE Operand broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm256_fmadd_ps(a, b, acc); }
  static ZT_CONV_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static ZT_CONV_INLINE float sum(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

constexpr DirectKernels kKernels = with_finish(direct_kernels<Avx2Conv, Avx2Conv>());

}  // namespace

const DirectKernels& direct_avx2() { return kKernels; }

}  // namespace zoetrope::kernels
