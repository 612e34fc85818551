// The bf16 tile on AVX-512-BF16. Its products flush subnormals, regardless of the control register.
#include "kernels/flash_attention/avx512_bf16_vectors.h"

namespace zoetrope::kernels {
namespace {

constexpr TileKernel kTile = {VectorTile<Avx512Bf16>::kShape, VectorTile<Avx512Bf16>::fold};

}  // namespace

const TileKernel& avx512_bf16_tile() { return kTile; }

}  // namespace zoetrope::kernels
