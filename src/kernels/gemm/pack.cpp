// Packs weights into panels, once per model: blocks of 16 rows × 8 columns, transposed in registers. BF16 is rounded
// first and transposed as pairs of rows, which halves the shuffles and lets a block write half a line at a time. A
// panel is filled kTile columns of all its rows at a time, so that each of its lines is complete before it leaves the
// L1 cache.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/gemm/packed.h"
#include "kernels/gemm/packed_amx.h"
#include "kernels/gemm/packed_int8.h"
#include "kernels/gemm/packed_onednn.h"
#include "kernels/simd.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

constexpr int64_t kBlock = simd::kWidth;
static_assert(kBlock == 8);
constexpr int64_t kRows = 2 * kBlock;  // transposed together; a divisor of every panel's columns
constexpr int64_t kTile = 64;          // 8 KB of a BF16 panel of 64 columns

// Element i of a row that may start at any byte.
template <typename From>
float stored_element(const std::byte* row, int64_t i) {
  From value;
  std::memcpy(&value, row + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
  if constexpr (sizeof(From) == sizeof(double)) return static_cast<float>(value);
  else return to_float(value);
}

// Eight of them from i on. F32 is loaded directly: via a local array the compiler stores halves and loads the whole,
// which waits for both, and packing took three times as long.
template <typename From>
Floats elements(const std::byte* row, int64_t i) {
  const std::byte* at = row + i * static_cast<int64_t>(sizeof(From));
  if constexpr (std::is_same_v<From, float>) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  } else if constexpr (std::is_same_v<From, Float16>) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  } else {
    float floats[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) floats[j] = stored_element<From>(row, i + j);
    return simd::load(floats);
  }
}

void transpose(Floats (&r)[kBlock]) {
  Floats pairs[kBlock], fours[kBlock];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// out[k][c] = rows[c][k] for kRows rows and kBlock k, `columns` elements apart from one k to the next.
template <typename From>
void transpose_block(const std::byte* rows, int64_t row_bytes, int64_t k, float* out, int64_t columns) {
  for (int64_t half = 0; half < kRows; half += kBlock) {
    Floats block[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) block[i] = elements<From>(rows + (half + i) * row_bytes, k);
    transpose(block);
    for (int64_t i = 0; i < kBlock; ++i) simd::store(out + i * columns + half, block[i]);
  }
}

template <typename From>
void transpose_block(const std::byte* rows, int64_t row_bytes, int64_t k, BFloat16* out, int64_t columns) {
  Floats pairs[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    const std::byte* row = rows + 2 * i * row_bytes;
    const __m256i low = simd::bfloat16_bits(elements<From>(row, k));
    const __m256i high = simd::bfloat16_bits(elements<From>(row + row_bytes, k));
    pairs[i] = _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa));
  }
  transpose(pairs);
  for (int64_t i = 0; i < kBlock; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * columns), _mm256_castps_si256(pairs[i]));
  }
}

// All k of rows_extent rows, a multiple of kRows.
template <typename From, typename To>
void pack_block(const std::byte* rows, int64_t rows_extent, int64_t k_extent, To* out, int64_t columns) {
  const int64_t row_bytes = k_extent * static_cast<int64_t>(sizeof(From));
  const int64_t k_whole = k_extent / kBlock * kBlock;
  for (int64_t tile = 0; tile < k_whole; tile += kTile) {
    const int64_t tile_end = std::min(tile + kTile, k_whole);
    for (int64_t row = 0; row < rows_extent; row += kRows) {
      const std::byte* from = rows + row * row_bytes;
      for (int64_t k = tile; k < tile_end; k += kBlock)
        transpose_block<From>(from, row_bytes, k, out + k * columns + row, columns);
    }
  }
  for (int64_t k = k_whole; k < k_extent; ++k) {
    for (int64_t i = 0; i < rows_extent; ++i) {
      out[k * columns + i] = from_float<To>(stored_element<From>(rows + i * row_bytes, k));
    }
  }
}

template <typename From, typename To>
void pack_matrix(const TensorView& stored, int64_t first_row, int64_t columns, To* out) {
  const int64_t rows = stored.extent(0), k_extent = stored.extent(1);
  const auto* data = static_cast<const std::byte*>(stored.raw());
  const int64_t row_bytes = k_extent * static_cast<int64_t>(sizeof(From));
  for (int64_t row = 0; row < rows;) {
    const int64_t n = first_row + row, column = n % columns;
    To* to = out + (n - column) * k_extent + column;
    const int64_t block = std::min(columns - column, rows - row) / kRows * kRows;
    if (block > 0) {
      pack_block<From>(data + row * row_bytes, block, k_extent, to, columns);
      row += block;
    } else {
      for (int64_t k = 0; k < k_extent; ++k)
        to[k * columns] = from_float<To>(stored_element<From>(data + row * row_bytes, k));
      ++row;
    }
  }
}

template <typename To>
void pack_stored(const TensorView& stored, int64_t first_row, int64_t columns, To* out) {
  with_stored_type(stored.dtype(), "pack: a matrix",
                   [&](auto tag) { pack_matrix<typename decltype(tag)::type>(stored, first_row, columns, out); });
}

template <typename To>
void pack_panels(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix, int64_t columns,
                 std::byte* out) {
  To* to = reinterpret_cast<To*>(out);
  const int64_t whole = matrix.n / columns * columns;  // rows in panels without zeros
  if (rows.end > whole) std::fill_n(to + whole * matrix.k, columns * matrix.k, To{});
  int64_t first_row = rows.begin;
  for (const TensorView& part : stored) {
    pack_stored(part, first_row, columns, to);
    first_row += part.extent(0);
  }
}

}  // namespace

int64_t panel_columns(PackedLayout layout) { return layout == PackedLayout::kColumns16 ? 16 : 64; }

size_t packed_bytes(const PackedMatrix& matrix) {
  if (matrix.layout == PackedLayout::kOneDnn) return onednn_packed_bytes(matrix);
  if (matrix.layout == PackedLayout::kTiles) return amx_packed_bytes(matrix);
  const int64_t columns = panel_columns(matrix.layout), panels = ceil_div(matrix.n, columns);
  if (matrix.dtype == DType::kI8) return static_cast<size_t>(panels) * int8_panel_bytes(matrix);
  return static_cast<size_t>(panels * columns * matrix.k) * dtype_size(matrix.dtype);
}

int64_t packed_row_step(const PackedMatrix& matrix) {
  if (matrix.layout == PackedLayout::kOneDnn) return onednn_row_step(matrix);
  return matrix.layout == PackedLayout::kTiles ? kAmxPanelColumns : panel_columns(matrix.layout);
}

int64_t packed_part_rows(const PackedMatrix& matrix) {
  return matrix.layout == PackedLayout::kOneDnn ? onednn_part_rows(matrix) : packed_row_step(matrix);
}

size_t packed_begin(const PackedMatrix& matrix, int64_t row) {
  const size_t bytes = packed_bytes(matrix);
  if (row >= matrix.n) return bytes;
  if (matrix.layout == PackedLayout::kOneDnn) return onednn_packed_begin(matrix, row);
  const int64_t rows = packed_row_step(matrix);
  return bytes / static_cast<size_t>(ceil_div(matrix.n, rows)) * static_cast<size_t>(row / rows);
}

void pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out) {
  int64_t rows = 0;
  for (const TensorView& part : stored) rows += part.extent(0);
  ZT_CHECK(rows == matrix.n, "pack: {} rows instead of {}", rows, matrix.n);
  pack_rows(stored, 0, matrix, out);
}

void pack_rows(std::span<const TensorView> stored, int64_t first_row, const PackedMatrix& matrix, std::byte* out,
               std::span<const float> scales) {
  IndexRange rows{first_row, first_row};
  for (const TensorView& part : stored) {
    ZT_CHECK(part.rank() == 2 && part.extent(1) == matrix.k && part.contiguous(), "pack: {} in [{}, {}]",
             part.shape().to_string(), matrix.n, matrix.k);
    rows.end += part.extent(0);
  }
  const int64_t step = packed_row_step(matrix);
  ZT_CHECK(rows.begin % step == 0 && (rows.end % step == 0 || rows.end == matrix.n) && rows.end <= matrix.n,
           "pack: rows {} to {} of {} in steps of {}", rows.begin, rows.end, matrix.n, step);
  if (rows.begin == rows.end) return;
  if (matrix.layout == PackedLayout::kOneDnn) return onednn_pack(stored, rows, matrix, out);
  if (matrix.layout == PackedLayout::kTiles) return amx_pack(stored, rows, matrix, out);
  if (matrix.dtype == DType::kI8) return int8_pack(stored, rows, matrix, scales, out);
  const int64_t columns = panel_columns(matrix.layout);
  with_compute_type(matrix.dtype, "a packed matrix",
                    [&](auto type) { pack_panels<typename decltype(type)::type>(stored, rows, matrix, columns, out); });
}

}  // namespace zoetrope::kernels
