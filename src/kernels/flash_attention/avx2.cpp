// The float32 tile on AVX2 + FMA. bf16 inputs are converted when they are packed. Sixteen registers: 4 × 3
// accumulators, three key vectors, one query. Fraction of the peak at S = 4096, D = 128 on Golden Cove: 0.865; 6 × 2
// 0.84, or 0.856 with the weights of three rows at once; unrolling by 2 and 4 −0.5 to −5 points. The loss is in the
// multiplications (0.9 alone): the loop's own instructions compete with them for two of five ports.
#include "kernels/flash_attention/avx2_vectors.h"
#include "kernels/flash_attention/exp2_coefficients.h"

namespace zoetrope::kernels {
namespace {

struct Avx2 : Avx2Vectors {
  static constexpr DType kOperand = DType::kF32;
  using Element = float;
  using Operand = __m256;
  static constexpr int kPair = 1;
  static constexpr int kQueryRows = 4;
  static constexpr int kKeyVectors = 3;
  static constexpr bool kWeighBetween = false;
  static constexpr int kValueVectors = 3;
  static constexpr int kStepUnit = 1;
  static constexpr int value_rows(int width) { return width == 1 ? 10 : width == 2 ? 6 : 4; }

  static ZT_FLASH_INLINE Operand operand(const Element* x) { return load(x); }
  static ZT_FLASH_INLINE Operand broadcast(const Element* x) { return _mm256_broadcast_ss(x); }
  static ZT_FLASH_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm256_fmadd_ps(a, b, acc); }

  template <int kCount>
  static ZT_FLASH_INLINE void exp2(Vec (&x)[kCount]) {
    exp2_of<5>(x, kExp2Degree5Nearest);
  }
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    exp2_scaled_of<5, kVectors>(x, e, kExp2Degree5Nearest);
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
