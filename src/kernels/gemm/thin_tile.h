// The one algorithm behind thin_avx2.cpp and thin_avx512.cpp, over the vectors of simd.h; a tile is kMaxRows rows of x
// by kVectors vectors of columns. Weights are stored [column][term] and needed [term][column], so a panel is transposed
// when it is widened: sixteen bytes of each of kWidth columns at a time, in 32-bit elements, which for bf16 are pairs
// of terms that are separated afterwards. That is 3.5 instructions per vector, against one per row of x for multiplying
// it; sums along the terms, which need no transpose, lost for six rows and more to their horizontal additions.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "kernels/gemm/thin_kernel.h"
#include "kernels/simd.h"

#define ZT_THIN_INLINE inline __attribute__((always_inline))

namespace zoetrope::kernels {
namespace {

using simd::Floats;
using simd::kWidth;

constexpr int kVectors = 2;
constexpr int64_t kColumns = kVectors * kWidth;
constexpr int64_t kQuarter = 16;  // bytes of a column that are transposed together: a quarter of a cache line

ZT_THIN_INLINE __m128i quarter(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

#ifdef __AVX512F__
constexpr int kMaxRows = 12;
constexpr int kQuartersAtOnce = 4;
using Ints = __m512i;
ZT_THIN_INLINE Ints load_quarters(const std::byte* const* column, int64_t offset) {
  Ints all = _mm512_castsi128_si512(quarter(column[0] + offset));
  all = _mm512_inserti32x4(all, quarter(column[4] + offset), 1);
  all = _mm512_inserti32x4(all, quarter(column[8] + offset), 2);
  return _mm512_inserti32x4(all, quarter(column[12] + offset), 3);
}
ZT_THIN_INLINE Ints unpack_low_32(Ints a, Ints b) { return _mm512_unpacklo_epi32(a, b); }
ZT_THIN_INLINE Ints unpack_high_32(Ints a, Ints b) { return _mm512_unpackhi_epi32(a, b); }
ZT_THIN_INLINE Ints unpack_low_64(Ints a, Ints b) { return _mm512_unpacklo_epi64(a, b); }
ZT_THIN_INLINE Ints unpack_high_64(Ints a, Ints b) { return _mm512_unpackhi_epi64(a, b); }
ZT_THIN_INLINE Floats as_floats(Ints bits) { return _mm512_castsi512_ps(bits); }
ZT_THIN_INLINE Floats low_bf16(Ints pair) { return as_floats(_mm512_slli_epi32(pair, 16)); }
ZT_THIN_INLINE Floats high_bf16(Ints pair) {
  return as_floats(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
#else
constexpr int kMaxRows = 6;  // twelve sums, two weights and a value: fifteen of sixteen registers
constexpr int kQuartersAtOnce = 1;
using Ints = __m256i;
ZT_THIN_INLINE Ints load_quarters(const std::byte* const* column, int64_t offset) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(quarter(column[0] + offset)), quarter(column[4] + offset), 1);
}
ZT_THIN_INLINE Ints unpack_low_32(Ints a, Ints b) { return _mm256_unpacklo_epi32(a, b); }
ZT_THIN_INLINE Ints unpack_high_32(Ints a, Ints b) { return _mm256_unpackhi_epi32(a, b); }
ZT_THIN_INLINE Ints unpack_low_64(Ints a, Ints b) { return _mm256_unpacklo_epi64(a, b); }
ZT_THIN_INLINE Ints unpack_high_64(Ints a, Ints b) { return _mm256_unpackhi_epi64(a, b); }
ZT_THIN_INLINE Floats as_floats(Ints bits) { return _mm256_castsi256_ps(bits); }
ZT_THIN_INLINE Floats low_bf16(Ints pair) { return as_floats(_mm256_slli_epi32(pair, 16)); }
ZT_THIN_INLINE Floats high_bf16(Ints pair) {
  return as_floats(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
#endif

// in[g] holds columns g, g + 4, …, four 32-bit elements of each; out[i] is element i of all columns.
ZT_THIN_INLINE void transpose(const Ints (&in)[4], Ints (&out)[4]) {
  const Ints a = unpack_low_32(in[0], in[1]), b = unpack_high_32(in[0], in[1]);
  const Ints c = unpack_low_32(in[2], in[3]), d = unpack_high_32(in[2], in[3]);
  out[0] = unpack_low_64(a, c);
  out[1] = unpack_high_64(a, c);
  out[2] = unpack_low_64(b, d);
  out[3] = unpack_high_64(b, d);
}

template <ThinWeight kWeight, int kQuarters>
ZT_THIN_INLINE void pack_quarters(const std::byte* const* column, int64_t offset, float* to) {
  // Columns are a power of two apart, so their lines fall into one set of the L1 cache, which holds fewer than sixteen
  // of them: everything needed from a line is loaded before the next columns' lines displace it.
  Ints in[kQuarters][4];
  for (int g = 0; g < 4; ++g)
    for (int q = 0; q < kQuarters; ++q) in[q][g] = load_quarters(column + g, offset + q * kQuarter);
  for (int q = 0; q < kQuarters; ++q) {
    Ints bits[4];
    transpose(in[q], bits);
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWeight == ThinWeight::kBF16) {
        simd::store(to, low_bf16(bits[i]));
        simd::store(to + kColumns, high_bf16(bits[i]));
        to += 2 * kColumns;
      } else {
        const Floats stored = as_floats(bits[i]);
        simd::store(to, kWeight == ThinWeight::kF32 ? stored : simd::round_to_bfloat16(stored));
        to += kColumns;
      }
    }
  }
}

template <ThinWeight kWeight>
void pack_columns(const std::byte* const* column, int64_t depth, float* to) {
  const int64_t bytes = depth * thin_weight_bytes(kWeight);
  const int64_t terms = kQuarter / thin_weight_bytes(kWeight);
  int64_t offset = 0;
  for (; offset + kQuartersAtOnce * kQuarter <= bytes; offset += kQuartersAtOnce * kQuarter) {
    pack_quarters<kWeight, kQuartersAtOnce>(column, offset, to);
    to += kQuartersAtOnce * terms * kColumns;
  }
  for (; offset + kQuarter <= bytes; offset += kQuarter, to += terms * kColumns) {
    pack_quarters<kWeight, 1>(column, offset, to);
  }
  if (offset == bytes) return;
  // The rest of each column, followed by zeros.
  std::byte rest[kWidth][kQuarter] = {};
  const std::byte* at[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    std::memcpy(rest[i], column[i] + offset, static_cast<size_t>(bytes - offset));
    at[i] = rest[i];
  }
  pack_quarters<kWeight, 1>(at, 0, to);
}

template <ThinWeight kWeight>
void pack_panel(const ThinPack& task) {
  alignas(64) static constexpr std::array<std::byte, kThinDepth * 4> kZeros{};
  for (int64_t first = 0; first < kColumns; first += kWidth) {
    const std::byte* column[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      column[i] = first + i < task.columns ? task.w + (first + i) * task.row_bytes : kZeros.data();
    }
    pack_columns<kWeight>(column, task.depth, task.panel + first);
  }
}

void pack(const ThinPack& task) {
  switch (task.weight) {
    case ThinWeight::kF32:
      return pack_panel<ThinWeight::kF32>(task);
    case ThinWeight::kF32RoundedToBF16:
      return pack_panel<ThinWeight::kF32RoundedToBF16>(task);
    case ThinWeight::kBF16:
      return pack_panel<ThinWeight::kBF16>(task);
  }
}

template <int kRows>
ZT_THIN_INLINE void add_term(const float* x, const float* panel, Floats (&sums)[kRows][kVectors]) {
  Floats w[kVectors];
  for (int v = 0; v < kVectors; ++v) w[v] = simd::load(panel + v * kWidth);
  for (int r = 0; r < kRows; ++r) {
    const Floats value = simd::set(x[r]);
    for (int v = 0; v < kVectors; ++v) sums[r][v] = simd::fma(value, w[v], sums[r][v]);
  }
}

template <int kRows>
void multiply_rows(const ThinTile& t) {
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = simd::zero();
  const float *x = t.x, *panel = t.panel;
  int64_t k = 0;
  for (; k + 8 <= t.depth; k += 8) {
    t.next_weights->step<Prefetch::kIntoL2>();
    for (int i = 0; i < 8; ++i, x += kRows, panel += kColumns) add_term<kRows>(x, panel, sums);
  }
  for (; k < t.depth; ++k, x += kRows, panel += kColumns) add_term<kRows>(x, panel, sums);
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      float* to = t.sums + r * kColumns + v * kWidth;
      simd::store(to, t.accumulate ? simd::load(to) + sums[r][v] : sums[r][v]);
    }
}

void multiply(const ThinTile& task) {
  static constexpr auto kByRows = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    return std::array<void (*)(const ThinTile&), sizeof...(kIndex)>{&multiply_rows<kIndex + 1>...};
  }
  (std::make_integer_sequence<int, kMaxRows>{});
  kByRows[static_cast<size_t>(task.rows - 1)](task);
}

constexpr ThinKernel kThinKernel = {kColumns, kMaxRows, &pack, &multiply};

}  // namespace
}  // namespace zoetrope::kernels
