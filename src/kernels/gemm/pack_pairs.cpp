// Sixteen rows × 32 terms at a time are rounded and transposed in registers as pairs, so that every line of a block is
// written once and whole. Half a kilobyte of each row is read before the next row, and the following one is prefetched.
#include "kernels/gemm/pack_pairs.h"

#include <immintrin.h>

#include <algorithm>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/simd.h"
#include "kernels/transpose_avx512.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kRows = 16;  // transposed together
// Read of one row before the next. 256 and 512 gained nothing, nor did stores that bypass the caches: a third of the
// time is the system's clearing of fresh pages and a third is waiting for reads.
constexpr int64_t kStretchTerms = 128;

using Row = const std::byte*;

__mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, kRows)) - 1); }

// Terms [k, k + 32) of a row, of which `terms` exist, as sixteen pairs.
template <typename From>
__m512i pairs(Row row, int64_t k, int64_t terms) {
  const std::byte* at = row + k * static_cast<int64_t>(sizeof(From));
  if constexpr (sizeof(From) == sizeof(BFloat16)) {
    if (terms >= kPairTerms) return _mm512_loadu_si512(at);
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << terms) - 1), at);
  } else {
    const auto* floats = reinterpret_cast<const float*>(at);
    const bool whole = terms >= kPairTerms;
    const __m512 low = whole ? _mm512_loadu_ps(floats) : _mm512_maskz_loadu_ps(first_lanes(terms), floats);
    const __m512 high =
        whole ? _mm512_loadu_ps(floats + kRows) : _mm512_maskz_loadu_ps(first_lanes(terms - kRows), floats + kRows);
    // The upper halves of both, in order.
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25,
                                         23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(simd::bfloat16_bits(low), odd, simd::bfloat16_bits(high));
  }
}

// Up to sixteen rows; `to` is their first pair, `line` elements from one pair to the next.
template <typename From>
void pack_rows(std::span<const Row> rows, int64_t k, int64_t terms, BFloat16* to, int64_t line) {
  __m512i lines[kRows];
  const auto count = static_cast<int64_t>(rows.size());
  if (count == kRows) {
    for (size_t i = 0; i < kRows; ++i) {
      lines[i] = pairs<From>(rows[i], k, terms);
      const std::byte* next = rows[i] + (k + kStretchTerms) * static_cast<int64_t>(sizeof(From));
      __builtin_prefetch(next);
      if constexpr (sizeof(From) == sizeof(float)) __builtin_prefetch(next + 64);
    }
  } else {
    for (int64_t i = 0; i < kRows; ++i) {
      const auto row = static_cast<size_t>(i);
      lines[i] = i < count ? pairs<From>(rows[row], k, terms) : _mm512_setzero_si512();
    }
  }
  transpose(lines);
  for (int64_t i = 0; i < kRows; ++i) _mm512_storeu_si512(to + i * line, lines[i]);
}

template <typename From>
void pack_all(std::span<const Row> rows, int64_t k_extent, const PairBlocks& blocks, BFloat16* out) {
  const auto n = static_cast<int64_t>(rows.size());
  const int64_t n_padded = round_up(n, blocks.columns), k_padded = round_up(k_extent, kPairTerms);
  const int64_t line = 2 * blocks.columns;
  for (int64_t block = 0; block < n_padded; block += blocks.columns) {
    for (int64_t stretch = 0; stretch < k_padded; stretch += kStretchTerms) {
      const int64_t end = std::min(k_padded, stretch + kStretchTerms);
      for (int64_t row = block; row < block + blocks.columns; row += kRows) {
        const int64_t first = std::min(row, n), count = std::min(kRows, n - first);
        const auto group = rows.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
        for (int64_t k = stretch; k < end; k += kPairTerms) {
          BFloat16* to = out + block / blocks.columns * blocks.column_stride + k / kPairTerms * blocks.term_stride;
          pack_rows<From>(group, k, std::min(kPairTerms, k_extent - k), to + 2 * (row - block), line);
        }
      }
    }
  }
}

}  // namespace

void pack_pairs(std::span<const std::byte* const> rows, DType stored, int64_t k, const PairBlocks& blocks,
                BFloat16* out) {
  ZT_CHECK(stored == DType::kF32 || stored == DType::kBF16);
  ZT_CHECK(blocks.columns > 0 && blocks.columns % kRows == 0, "{} columns", blocks.columns);
  if (stored == DType::kF32) pack_all<float>(rows, k, blocks, out);
  else pack_all<BFloat16>(rows, k, blocks, out);
}

}  // namespace zoetrope::kernels
