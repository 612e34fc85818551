// int8 matrix multiplication with AVX2 alone, whose products of int16 add two in 32 bits: half of what dot products of
// bytes add in as many lanes, twice what float32 does. x is stored as int16. A group of a panel is widened to int16 for
// all rows of a call. Sums are the same integers as elsewhere, so results are the same bits.
#include "kernels/gemm/int8_tile.h"

namespace zoetrope::kernels {
namespace {

struct WordProducts {
  using Term = int16_t;
  using Weight = int16_t;
  static Ints add(Ints sums, Ints w, Ints x) { return add_ints(sums, _mm256_madd_epi16(w, x)); }
};

// w [terms / 4][columns][4] to [terms / 2][columns][2].
void widen(const uint8_t* w, int64_t terms, int16_t* to) {
  constexpr int64_t kVector = 32;  // bytes: four terms of eight columns
  constexpr char kZero = -1;
  const __m256i first = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, kZero, 1, kZero, 4, kZero, 5, kZero, 8, kZero, 9, kZero, 12, kZero, 13, kZero));
  const __m256i second = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(2, kZero, 3, kZero, 6, kZero, 7, kZero, 10, kZero, 11, kZero, 14, kZero, 15, kZero));
  for (int64_t i = 0; i < terms * kPanelColumns; i += 4 * kPanelColumns) {
    for (int64_t j = 0; j < 4 * kPanelColumns; j += kVector) {
      const __m256i four = load_ints(w + i + j);
      auto* const at = reinterpret_cast<__m256i*>(to + i + j / 2);
      _mm256_store_si256(at, _mm256_shuffle_epi8(four, first));
      _mm256_store_si256(at + 2 * kPanelColumns / 16, _mm256_shuffle_epi8(four, second));
    }
  }
}

void multiply_widened(const Int8Tile& call, int64_t rows) {
  alignas(64) int16_t w[kInt8Group * kPanelColumns];
  widen(static_cast<const uint8_t*>(call.w), call.terms, w);
  const int64_t next_per_row = kInt8Group * kPanelColumns / rows;
  for (int64_t row = 0; row < rows; row += kTileRows) {
    Int8Tile tile = call;
    tile.x = static_cast<const int16_t*>(call.x) + row * call.terms;
    tile.w = w;
    tile.scales += row;
    tile.corrections += row;
    if (tile.from != nullptr) tile.from += row * kPanelColumns;
    tile.to += row * kPanelColumns;
    tile.next += row * next_per_row;
    multiply_rows<WordProducts>(tile, std::min<int64_t>(kTileRows, rows - row));
  }
}

}  // namespace

const Int8Kernel& int8_kernel_avx2() {
  static constexpr Int8Kernel kKernel = [] {
    Int8Kernel kernel = kInt8Kernel<WordProducts>;
    kernel.call_rows = 21 * kTileRows;  // all of a block
    kernel.multiply = multiply_widened;
    return kernel;
  }();
  return kKernel;
}

}  // namespace zoetrope::kernels
