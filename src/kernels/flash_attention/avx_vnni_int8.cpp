// The int8 tile on AVX-VNNI: dot products of four bytes, as with AVX512-VNNI, in 256 bits.
#include "kernels/flash_attention/int8_tile_256.h"

namespace zoetrope::kernels {
namespace {

struct AvxVnniInt8 : Avx2Int8Vectors {
  static constexpr int kTerms = 4;

  struct Bytes {
    using Operand = Ints;
    static constexpr int kLanes = Avx2Vectors::kLanes, kPair = kTerms;
    static ZT_FLASH_INLINE Operand operand(const void* x) { return load_ints(x); }
    static ZT_FLASH_INLINE Operand broadcast(const void* x) { return broadcast_word(x); }
    // sum + unsigned · signed. In assembly: compiled for AVX-VNNI, inline functions that this file has in common with
    // others could bring its instructions to CPUs without them.
    static ZT_FLASH_INLINE Ints add_fours(Ints sum, Ints unsigned_bytes, Ints signed_bytes) {
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(unsigned_bytes), "x"(signed_bytes));
      return sum;
    }
  };
  using ScoreProducts = ScoreBytes<Bytes>;
  using ValueProducts = ValueBytes<Bytes>;

  // So that bytes, which are packed in halves of a vector, have the order of int8_step_key().
  static constexpr int panel_vector(int part, int i) { return part + 2 * i; }
  static ZT_FLASH_INLINE Ints store_weights(uint8_t* to, const Vec (&p)[4]) {
    const Ints low = _mm256_packs_epi32(_mm256_cvtps_epi32(p[0]), _mm256_cvtps_epi32(p[1]));
    const Ints high = _mm256_packs_epi32(_mm256_cvtps_epi32(p[2]), _mm256_cvtps_epi32(p[3]));
    const Ints bytes = _mm256_packus_epi16(low, high);
    store_ints(to, bytes);
    return sum_of(bytes);
  }
  static ZT_FLASH_INLINE Ints panel_sums(const uint8_t* weights) {
    return _mm256_add_epi32(sum_of(load_ints(weights)), sum_of(load_ints(weights + 32)));
  }
  static ZT_FLASH_INLINE Ints sum_of(Ints bytes) { return Bytes::add_fours(set_ints(0), bytes, _mm256_set1_epi8(1)); }
};

constexpr TileKernel kTile = {Int8Tile256<AvxVnniInt8>::kShape, Int8Tile256<AvxVnniInt8>::fold};

}  // namespace

const TileKernel& avx_vnni_int8_tile() { return kTile; }

}  // namespace zoetrope::kernels
