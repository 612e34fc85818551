// The bf16 tile on AVX-512-BF16 with scores from int8 dot products (AVX512-VNNI).
#include "kernels/flash_attention/avx512_bf16_vectors.h"

namespace zoetrope::kernels {
namespace {

struct Avx512Int8 : Avx512Bf16 {
  // Of the scores: sums of four products of signed queries and unsigned keys.
  struct Int8 {
    using Element = int8_t;
    using Operand = __m512i;
    static constexpr int kPair = 4;

    static ZT_FLASH_INLINE Operand operand(const Element* x) { return _mm512_loadu_si512(x); }
    static ZT_FLASH_INLINE Operand broadcast(const Element* x) {
      int32_t four;
      __builtin_memcpy(&four, x, sizeof(four));
      return _mm512_set1_epi32(four);
    }
    static ZT_FLASH_INLINE Operand dot(Operand acc, Operand query, Operand keys) {
      return _mm512_dpbusd_epi32(acc, keys, query);
    }
    static ZT_FLASH_INLINE Operand set1(int32_t x) { return _mm512_set1_epi32(x); }
    static ZT_FLASH_INLINE Vec to_floats(Operand x) { return _mm512_cvtepi32_ps(x); }
  };
};

constexpr TileKernel kTile = {VectorTile<Avx512Int8>::kShape, VectorTile<Avx512Int8>::fold};

}  // namespace

const TileKernel& avx512_int8_tile() { return kTile; }

}  // namespace zoetrope::kernels
