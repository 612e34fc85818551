// The float32 tile on AVX-512 (F, BW, DQ, VL). bf16 inputs are converted when they are packed.
#include "kernels/flash_attention/avx512_common.h"
#include "kernels/flash_attention/exp2_coefficients.h"

namespace zoetrope::kernels {
namespace {

struct Avx512 : Avx512Vectors {
  static constexpr DType kOperand = DType::kF32;
  using Element = float;
  using Operand = __m512;
  static constexpr int kPair = 1;
  // Twenty accumulators. Multiplications alone, fraction of the peak on Golden Cove: 5×4 0.998, 6×4 0.993, 4×4 0.983,
  // 8×2 0.965; on Zen 5 4×4 and 8×2 0.995, 5×4 0.99. In whole runs 8×2 lost 2 to 3 points on Golden Cove.
  static constexpr int kQueryRows = 5;
  static constexpr int kKeyVectors = 4;
  static constexpr bool kWeighBetween = false;
  static constexpr int kValueVectors = 4;
  static constexpr int kStepUnit = 1;
  static constexpr int value_rows(int width) { return width == 1 ? 12 : width == 2 ? 12 : width == 3 ? 7 : 5; }

  static ZT_FLASH_INLINE Operand operand(const Element* x) { return load(x); }
  static ZT_FLASH_INLINE Operand broadcast(const Element* x) { return _mm512_set1_ps(*x); }
  static ZT_FLASH_INLINE Vec dot(Vec acc, Operand a, Operand b) { return _mm512_fmadd_ps(a, b, acc); }
  template <int kCount>
  static ZT_FLASH_INLINE void exp2(Vec (&x)[kCount]) {
    exp2_of<5>(x, kExp2Degree5);
  }
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    exp2_scaled_of<5, kVectors>(x, e, kExp2Degree5);
  }
  static ZT_FLASH_INLINE float exp2_scalar(float x) {
    Vec all[1] = {set1(x)};
    exp2_of<5>(all, kExp2Degree5);
    return _mm512_cvtss_f32(all[0]);
  }
  static ZT_FLASH_INLINE Vec store_weights(Element* to, const Vec* p) {
    store(to, p[0]);
    store(to + kLanes, p[1]);
    store(to + 2 * kLanes, p[2]);
    store(to + 3 * kLanes, p[3]);
    return add(add(p[0], p[1]), add(p[2], p[3]));
  }
};

constexpr TileKernel kTile = {VectorTile<Avx512>::kShape, VectorTile<Avx512>::fold};

}  // namespace

const TileKernel& avx512_tile() { return kTile; }

}  // namespace zoetrope::kernels
