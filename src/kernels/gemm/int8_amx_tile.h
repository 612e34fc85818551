// Multiplication with int8 tiles of AMX. Internal linkage: for packed_amx_int8.cpp, and for a test, which emulates the
// tiles.
//
// The panels are those of AVX512-VNNI: sixteen columns of one are a tile as it lies. A part is 32 rows of x by half a
// panel: its int32 sums stay in four tiles over a group, are stored, and are added to the float32 sums in memory while
// the next part is multiplied.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/index_range.h"
#include "kernels/amx_tiles.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/gemm/packed_int8.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kTile = kAmxTileRows, kStep = kAmxTileLine;  // rows, and terms of a tile
constexpr int64_t kPair = 2 * kTile;                           // rows and columns of a part
constexpr int64_t kHalves = 2, kColumns = kHalves * kPair;     // of a panel
constexpr int64_t kPanelLine = 4 * kColumns;                   // bytes: four terms of all columns
constexpr int64_t kCallRows = 256;
static_assert(kCallRows % kPair == 0);

// Rows of a part whose int32 sums are still to be added.
struct PendingRows {
  const int32_t* sums = nullptr;  // [rows][32]
  Int8Tile at;                    // of the first row and column
  int64_t left = 0;

  void add(int64_t rows) {
    for (rows = std::min(rows, left), left -= rows; rows > 0; --rows) {
      const __m512i correction = _mm512_set1_epi32(*at.corrections++);
      const __m512 scale = _mm512_set1_ps(*at.scales++);
      for (int64_t i = 0; i < kPair; i += kTile) {
        const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums + i), correction);
        const __m512 from = at.from == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(at.from + i);
        __m512 y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, from);
        if (at.w_scales != nullptr) y = _mm512_mul_ps(y, _mm512_loadu_ps(at.w_scales + i));
        _mm512_storeu_ps(at.to + i, y);
      }
      sums += kPair;
      at.to += kColumns;
      if (at.from != nullptr) at.from += kColumns;
    }
  }
};

// 16 or 32 rows of x, `stride` bytes apart, times 32 columns; sums [rows][32].
template <int kRowTiles>
void multiply_part(const int8_t* x, int64_t stride, const uint8_t* w, int64_t steps, int32_t* sums,
                   PendingRows& before) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kRowTiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const int64_t each = ceil_div(kPair, steps);
  for (int64_t step = 0; step < steps; ++step, x += kStep, w += kTile * kPanelLine) {
    _tile_loadd(6, x, stride);
    _tile_loadd(4, w, kPanelLine);
    _tile_loadd(5, w + kAmxTileLine, kPanelLine);
    if constexpr (kRowTiles == 2) _tile_loadd(7, x + kTile * stride, stride);
    _tile_dpbsud(0, 6, 4);
    _tile_dpbsud(1, 6, 5);
    if constexpr (kRowTiles == 2) {
      _tile_dpbsud(2, 7, 4);
      _tile_dpbsud(3, 7, 5);
    }
    before.add(each);
  }
  constexpr int64_t kLine = kPair * static_cast<int64_t>(sizeof(int32_t));
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + kTile, kLine);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, sums + kTile * kPair, kLine);
    _tile_stored(3, sums + kTile * kPair + kTile, kLine);
  }
}

// Rows of x, in 32 rows of whole groups with zeros elsewhere.
void copy_rows(const int8_t* x, int64_t rows, int64_t terms, int8_t* to) {
  std::memset(to, 0, static_cast<size_t>(kPair * kInt8Group));
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * kInt8Group, x + row * terms, static_cast<size_t>(terms));
}

// Rows and terms that do not fill their tiles are copied, because what lies beyond them may not be there.
void multiply_rows(const Int8Tile& tile, int64_t rows) {
  alignas(64) int8_t x_copy[kPair * kInt8Group];
  alignas(64) uint8_t w_copy[kInt8Group * kColumns];
  alignas(64) int32_t sums[kHalves][kPair * kPair];
  const int64_t steps = ceil_div(tile.terms, kStep);
  const bool whole = tile.terms % kStep == 0;
  const auto* w = static_cast<const uint8_t*>(tile.w);
  if (!whole) {
    const auto bytes = static_cast<size_t>(tile.terms * kColumns);
    std::memcpy(w_copy, tile.w, bytes);
    std::memset(w_copy + bytes, 0, sizeof w_copy - bytes);
    w = w_copy;
  }
  PendingRows before;
  for (int64_t row = 0; row < rows; row += kPair) {
    const int64_t count = std::min(kPair, rows - row);
    const int8_t* x = static_cast<const int8_t*>(tile.x) + row * tile.terms;
    int64_t stride = tile.terms;
    if (!whole || count % kTile != 0) {
      copy_rows(x, count, tile.terms, x_copy);
      x = x_copy;
      stride = kInt8Group;
    }
    // GCC 12 does not see that tiles are loaded from the copies: here it must have written them. It writes the next
    // ones after these loads, because it knows that _tile_stored() touches memory.
    asm volatile("" : : "r"(x_copy), "r"(w_copy) : "memory");
    for (int64_t half = 0; half < kHalves; ++half) {
      const uint8_t* const columns = w + half * kPair * 4;
      if (count > kTile) multiply_part<2>(x, stride, columns, steps, sums[half], before);
      else multiply_part<1>(x, stride, columns, steps, sums[half], before);
      before = {sums[half], tile, count};
      before.at.scales += row;
      before.at.corrections += row;
      const int64_t at = row * kColumns + half * kPair;
      before.at.to += at;
      if (tile.from != nullptr) before.at.from += at;
      if (tile.w_scales != nullptr) before.at.w_scales += half * kPair;
    }
  }
  before.add(kPair);
}

void with_tiles(void (*work)(void*), void* argument) {
  const AmxTiles tiles;
  work(argument);
}

Int8Kernel make_amx_kernel() {
  Int8Kernel kernel = int8_kernel_vnni512();
  kernel.rows = kPair;
  kernel.call_rows = kCallRows;
  kernel.multiply = multiply_rows;
  kernel.with_tiles = with_tiles;
  return kernel;
}

}  // namespace
}  // namespace zoetrope::kernels
