// The bf16 tile on AVX-512-BF16. Its multiplications flush subnormals, whatever the control register says.
#include "kernels/flash_attention/avx512_bf16_vectors.h"

namespace zoetrope::kernels {
namespace {

// AMD's cores, which `auto` takes this tile for, round, add, scale and permute beside two multiplications a cycle: by
// lines instead of polynomials a tile takes 1 % less (Zen 4).
struct Avx512Bf16Lines : Avx512Bf16 {
  template <int kCount>
  static ZT_FLASH_INLINE void exp2(Vec (&x)[kCount]) {
    exp2_by_lines(x);
  }
  template <int kVectors, int kCount, int kRows>
  static ZT_FLASH_INLINE void exp2_scaled(Vec (&x)[kCount], const Vec (&e)[kRows]) {
    exp2_scaled_by_lines<kVectors>(x, e);
  }
};

constexpr TileKernel kTile = {VectorTile<Avx512Bf16Lines>::kShape, VectorTile<Avx512Bf16Lines>::fold};

}  // namespace

const TileKernel& avx512_bf16_tile() { return kTile; }

}  // namespace zoetrope::kernels
