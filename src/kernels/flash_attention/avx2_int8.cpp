// The int8 tile on AVX2 alone, whose products of int16 add two in 32 bits: half of what dot products of bytes add in as
// many lanes, twice what float32 does. Keys, values, queries and weights are stored as int16.
#include "kernels/flash_attention/int8_tile_256.h"

namespace zoetrope::kernels {
namespace {

struct Avx2Int8 : Avx2Int8Vectors {
  static constexpr int kTerms = 2;

  struct Products {
    using Element = int16_t;
    using Operand = Ints;
    static constexpr int kLanes = Avx2Vectors::kLanes, kPair = kTerms;
    static ZT_FLASH_INLINE Operand operand(const void* x) { return load_ints(x); }
    static ZT_FLASH_INLINE Operand broadcast(const void* x) { return broadcast_word(x); }
    // In assembly, because GCC 12 broadcasts for all rows first, and keeps sums in memory.
    static ZT_FLASH_INLINE Ints dot(Ints sum, Ints a, Ints b) {
      Ints products;
      asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
      return sum;
    }
  };
  using ScoreProducts = Products;
  using ValueProducts = Products;

  static constexpr int panel_vector(int part, int i) { return 4 * part + i; }
  static ZT_FLASH_INLINE Ints store_weights(int16_t* to, const Vec (&p)[4]) {
    const Ints first = rounded(p[0], p[1]), second = rounded(p[2], p[3]);
    store_ints(to, first);
    store_ints(to + 16, second);
    return _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1));
  }
  // In the order of the keys.
  static ZT_FLASH_INLINE Ints rounded(Vec a, Vec b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
  }
  static ZT_FLASH_INLINE Ints panel_sums(const int16_t* weights) {
    Ints sum = set_ints(0);
    for (int i = 0; i < kInt8PanelKeys; i += 16)
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load_ints(weights + i), _mm256_set1_epi16(1)));
    return sum;
  }
};

constexpr TileKernel kTile = {Int8Tile256<Avx2Int8>::kShape, Int8Tile256<Avx2Int8>::fold};

}  // namespace

const TileKernel& avx2_int8_tile() { return kTile; }

}  // namespace zoetrope::kernels
