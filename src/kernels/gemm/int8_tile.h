// Quantisation of x and multiplication of a tile of int8 values; included by one short file per instruction set.
//
// A tile is 6 rows of x by a panel: its int32 sums stay in registers (24 of 32 with AVX-512, 12 of 16 with 256 bits)
// over a group, and are added to float32 sums in memory after it.
//
// `Products` says how 32 bits of x are multiplied with as many of each column: Term and Weight are the types of their
// values in memory, add() multiplies and adds. DotProducts are four of bytes (VNNI).
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/gemm/int8_groups.h"
#include "kernels/gemm/packed_int8.h"
#include "kernels/gemm/packed_tile.h"
#include "kernels/gemm/prefetch.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

#ifdef __AVX512F__

using Ints = __m512i;
inline Ints set_ints(int32_t value) { return _mm512_set1_epi32(value); }
inline Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints to_ints(Floats x) { return _mm512_cvtps_epi32(x); }
template <int kOrder>
Floats permute_fours(Floats x) {
  return _mm512_permute_ps(x, kOrder);
}
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_ints(Ints x) { return _mm512_reduce_add_epi32(x); }
inline Ints largest_magnitudes(Ints most, Floats x) {
  return _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}
inline uint32_t largest_of(Ints x) { return _mm512_reduce_max_epu32(x); }
inline void store_narrow(int8_t* p, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x));
}

#else

using Ints = __m256i;
inline Ints set_ints(int32_t value) { return _mm256_set1_epi32(value); }
inline Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints to_ints(Floats x) { return _mm256_cvtps_epi32(x); }
template <int kOrder>
Floats permute_fours(Floats x) {
  return _mm256_permute_ps(x, kOrder);
}
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
template <typename Combine>
uint32_t combined(Ints x, Combine&& combine) {
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), x);
  uint32_t all = lanes[0];
  for (int i = 1; i < 8; ++i) all = combine(all, lanes[i]);
  return all;
}
inline int32_t sum_ints(Ints x) {
  return static_cast<int32_t>(combined(x, [](uint32_t a, uint32_t b) { return a + b; }));
}
inline Ints largest_magnitudes(Ints most, Floats x) {
  return _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)));
}
inline uint32_t largest_of(Ints x) {
  return combined(x, [](uint32_t a, uint32_t b) { return std::max(a, b); });
}
inline void store_narrow(int16_t* p, Ints x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
}
inline void store_narrow(int8_t* p, Ints x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

#endif

struct DotProducts {
  using Term = int8_t;
  using Weight = uint8_t;
  // In assembly, so that a file with int8 products needs no other flags than those with whose code it shares names.
  static Ints add(Ints sums, Ints w, Ints x) {
#ifdef __AVX512F__
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(w), "x"(x));
#endif
    return sums;
  }
};

// As rotate_group(): a vector of lanes at a time, between registers.
inline Ints rotate_lanes(const BFloat16* x, float* rotated) {
  constexpr int64_t kVectors = kInt8Group / kInt8Lanes;
  Ints most = set_ints(0);
  for (int64_t lane = 0; lane < kInt8Lanes; lane += simd::kWidth) {
    Floats v[kVectors];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kVectors; ++i) v[i] = simd::load(x + i * kInt8Lanes + lane);
#pragma GCC unroll 4
    for (int64_t half = 1; half < kVectors; half *= 2) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVectors; ++i) {
        if ((i & half) != 0) continue;
        const Floats a = v[i], b = v[i + half];
        v[i] = a + b;
        v[i + half] = a - b;
      }
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kVectors; ++i) {
      const Floats value = v[i] * simd::set(0.25f);
      most = largest_magnitudes(most, value);
      simd::store(rotated + i * kInt8Lanes + lane, value);
    }
  }
  return most;
}

// A stage of rotate_convrot() with quadruples `step` apart, a vector at a time where they are that far.
template <typename Vector, typename Load, typename Store>
void convrot_stage(float* x, int64_t terms, int64_t step, int64_t width, const Load& load, const Store& store) {
  for (int64_t four = 0; four < terms; four += 4 * step) {
    for (int64_t i = four; i < four + step; i += width) {
      const Vector a = load(x + i), b = load(x + i + step), c = load(x + i + 2 * step), d = load(x + i + 3 * step);
      const Vector sum = (a + b) + (c + d);
      store(x + i, sum - (d + d));
      store(x + i + step, sum - (c + c));
      store(x + i + 2 * step, sum - (b + b));
      store(x + i + 3 * step, sum - (a + a));
    }
  }
}

// As rotate_convrot() for each group of x [terms], a multiple of the group; `x` has room for a vector behind them.
inline void convrot(float* x, int64_t terms, int group) {
  for (int64_t i = 0; i < terms; i += simd::kWidth) {
    const Floats v = simd::load(x + i), pairs = v + permute_fours<0xB1>(v);  // neighbours
    const Floats across = permute_fours<0x1B>(v);
    simd::store(x + i, pairs + permute_fours<0x4E>(pairs) - (across + across));
  }
  if (group >= 16)
    convrot_stage<__m128>(
        x, terms, 4, 4, [](const float* p) { return _mm_loadu_ps(p); },
        [](float* p, __m128 v) { _mm_storeu_ps(p, v); });
  float factor = group >= 16 ? 0.25f : 0.5f;
  for (int64_t step = 16; step < group; step *= 4, factor *= 0.5f)
    convrot_stage<Floats>(
        x, terms, step, simd::kWidth, [](const float* p) { return simd::load(p); },
        [](float* p, Floats v) { simd::store(p, v); });
  for (int64_t i = 0; i < terms; i += simd::kWidth) simd::store(x + i, simd::load(x + i) * simd::set(factor));
}

template <typename Term>
void quantise_group(const BFloat16* x, int64_t terms, int rotation, void* quantised, float* scale,
                    int32_t* correction) {
  auto* const to = static_cast<Term*>(quantised);
  alignas(64) float values[kInt8Group];
  const int64_t stored = (terms + 3) / 4 * 4, padded = (terms + simd::kWidth - 1) / simd::kWidth * simd::kWidth;
  Ints most;
  if (rotation == kInt8Hadamard && terms == kInt8Group) {
    most = rotate_lanes(x, values);
  } else {
    for (int64_t i = 0; i < padded; i += simd::kWidth)
      simd::store(values + i, simd::load(x + i, std::min(simd::kWidth, terms - i)));
    if (rotation > 0) convrot(values, terms, rotation);
    most = set_ints(0);
    for (int64_t i = 0; i < padded; i += simd::kWidth) most = largest_magnitudes(most, simd::load(values + i));
  }
  const Int8Scale scaled = int8_scale(std::bit_cast<float>(largest_of(most)));
  const Floats factor = simd::set(scaled.factor);
  Ints sum = set_ints(0);
  alignas(64) Term copy[kInt8Group];
  Term* const out = stored == padded ? to : copy;
  for (int64_t i = 0; i < padded; i += simd::kWidth) {
    const Ints rounded = to_ints(simd::load(values + i) * factor);
    sum = add_ints(sum, rounded);
    store_narrow(out + i, rounded);
  }
  if (out == copy) std::memcpy(to, copy, static_cast<size_t>(stored) * sizeof(Term));
  *scale = scaled.scale;
  *correction = static_cast<int32_t>(-128u * static_cast<uint32_t>(sum_ints(sum)));
}

// Panels, x and sums do not fit the L1 cache, so each step fetches a line: of the sums, then of the rows that follow,
// then of the next group's w, this one into the L2 cache (into L1 it was up to 2 % slower). Together with an epilogue
// without branches in its loops, matrix multiplications took 5 to 13 % less time on Emerald Rapids (AVX-512). Three
// Prefetch objects in one loop took 20 % more time.
template <typename Products, int kRows>
void multiply_group(const Int8Tile& t) {
  using Term = typename Products::Term;
  constexpr int64_t kStep = 4 / sizeof(Term);  // terms
  Ints sums[kRows][kTileVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j) sums[i][j] = set_ints(t.corrections[i]);
  const auto* w = static_cast<const typename Products::Weight*>(t.w);
  const auto* x = static_cast<const Term*>(t.x);
  const Term* const rows = x;
  const auto multiply_until = [&](int64_t term, const void* soon, auto cache) {
    const auto* line = static_cast<const char*>(soon);
    for (const Term* const end = rows + std::min(term, t.terms); x < end; x += kStep, w += kStep * kPanelColumns) {
      __builtin_prefetch(line, 0, decltype(cache)::value);
      line += Prefetch::kLine;
      Ints columns[kTileVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) columns[j] = load_ints(w + j * kStep * simd::kWidth);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        int32_t terms;
        std::memcpy(&terms, x + i * t.terms, sizeof terms);
        const Ints value = set_ints(terms);
#pragma GCC unroll 4
        for (int j = 0; j < kTileVectors; ++j) sums[i][j] = Products::add(sums[i][j], columns[j], value);
      }
    }
  };
  constexpr std::integral_constant<int, Prefetch::kIntoL1> kL1;
  constexpr std::integral_constant<int, Prefetch::kIntoL2> kL2;
  constexpr int64_t kSumLines = kRows * kPanelColumns * static_cast<int64_t>(sizeof(float)) / Prefetch::kLine;
  const int64_t x_lines = kRows * t.terms * static_cast<int64_t>(sizeof(Term)) / Prefetch::kLine;
  multiply_until(kStep * kSumLines, t.to, kL1);
  multiply_until(kStep * (kSumLines + x_lines), rows + kRows * t.terms, kL1);
  multiply_until(t.terms, t.next, kL2);
  const auto add = [from = t.from, to = t.to, w_scales = t.w_scales, scales = t.scales, &sums](auto first, auto last) {
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Floats scale = simd::set(scales[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) {
        const int64_t at = i * kPanelColumns + j * simd::kWidth;
        Floats y = to_floats(sums[i][j]);
        y = simd::fma(y, scale, first ? simd::zero() : simd::load(from + at));
        if (last) y = y * simd::load(w_scales + j * simd::kWidth);
        simd::store(to + at, y);
      }
    }
  };
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (t.w_scales != nullptr) t.from == nullptr ? add(kYes, kYes) : add(kNo, kYes);
  else t.from == nullptr ? add(kYes, kNo) : add(kNo, kNo);
}

template <typename Products>
void multiply_rows(const Int8Tile& tile, int64_t rows) {
  constexpr void (*kMultiplyGroup[kTileRows + 1])(const Int8Tile&) = {nullptr,
                                                                      multiply_group<Products, 1>,
                                                                      multiply_group<Products, 2>,
                                                                      multiply_group<Products, 3>,
                                                                      multiply_group<Products, 4>,
                                                                      multiply_group<Products, 5>,
                                                                      multiply_group<Products, 6>};
  kMultiplyGroup[rows](tile);
}

template <typename Products>
constexpr Int8Kernel kInt8Kernel{.columns = kPanelColumns,
                                 .rows = kTileRows,
                                 .call_rows = kTileRows,
                                 .term_bytes = sizeof(typename Products::Term),
                                 .quantise = quantise_group<typename Products::Term>,
                                 .multiply = multiply_rows<Products>,
                                 .finish = finish_rows};

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels
