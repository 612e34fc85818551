// The one algorithm behind thin_avx2.cpp and thin_avx512.cpp. An Isa has kLanes floats a vector; a tile is kRows rows
// of x by kVectors vectors of columns. Weights arrive [column][term] and are wanted [term][column], so a panel is
// transposed when it is widened: sixteen bytes of each of kLanes columns at a time, in 32-bit elements, which for bf16
// are pairs of terms that part afterwards. That is 3.5 instructions a vector against one a row of x for multiplying it;
// sums along the terms, which need no transposing, lost for six rows and more to their horizontal additions.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/gemm/thin_kernel.h"

#define ZT_THIN_INLINE inline __attribute__((always_inline))

namespace zoetrope::kernels {

template <typename Isa>
struct ThinAlgorithm {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int64_t kColumns = int64_t{Isa::kVectors} * kLanes;
  static constexpr int64_t kQuarter = 16;  // bytes

  // Columns lie a power of two apart, so that their lines fall into one set of the L1 cache, which holds fewer than
  // sixteen of them: all of a line that is going to be used is loaded before the next columns' lines displace it.
  template <int kSteps>
  static ZT_THIN_INLINE void load(const std::byte* const* column, int64_t offset, Ints (&in)[kSteps][4]) {
    for (int g = 0; g < 4; ++g)
      for (int s = 0; s < kSteps; ++s) in[s][g] = Isa::load_quarters(column + g, offset + s * kQuarter);
  }

  // in[g] holds columns g, g + 4, …, four 32-bit elements of each; out[i] is element i of all columns.
  static ZT_THIN_INLINE void transpose(const Ints (&in)[4], Ints (&out)[4]) {
    const Ints a = Isa::unpack_low_32(in[0], in[1]), b = Isa::unpack_high_32(in[0], in[1]);
    const Ints c = Isa::unpack_low_32(in[2], in[3]), d = Isa::unpack_high_32(in[2], in[3]);
    out[0] = Isa::unpack_low_64(a, c);
    out[1] = Isa::unpack_high_64(a, c);
    out[2] = Isa::unpack_low_64(b, d);
    out[3] = Isa::unpack_high_64(b, d);
  }

  template <ThinWeight kWeight, int kSteps>
  static ZT_THIN_INLINE void pack_quarters(const std::byte* const* column, int64_t offset, float* to) {
    Ints in[kSteps][4];
    load<kSteps>(column, offset, in);
    for (int s = 0; s < kSteps; ++s) {
      Ints bits[4];
      transpose(in[s], bits);
      for (int i = 0; i < 4; ++i) {
        if constexpr (kWeight == ThinWeight::kBF16) {
          Isa::store(to, Isa::low_bf16(bits[i]));
          Isa::store(to + kColumns, Isa::high_bf16(bits[i]));
          to += 2 * kColumns;
        } else {
          Isa::store(to, kWeight == ThinWeight::kF32 ? Isa::as_floats(bits[i]) : Isa::round_to_bf16(bits[i]));
          to += kColumns;
        }
      }
    }
  }

  template <ThinWeight kWeight>
  static void pack_columns(const std::byte* const* column, int64_t depth, float* to) {
    const int64_t bytes = depth * thin_weight_bytes(kWeight);
    const int64_t terms = kQuarter / thin_weight_bytes(kWeight);
    int64_t offset = 0;
    for (; offset + Isa::kSteps * kQuarter <= bytes; offset += Isa::kSteps * kQuarter) {
      pack_quarters<kWeight, Isa::kSteps>(column, offset, to);
      to += Isa::kSteps * terms * kColumns;
    }
    for (; offset + kQuarter <= bytes; offset += kQuarter, to += terms * kColumns) {
      pack_quarters<kWeight, 1>(column, offset, to);
    }
    if (offset == bytes) return;
    // What is left of each column, zeros behind it.
    std::byte rest[kLanes][kQuarter] = {};
    const std::byte* at[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(rest[i], column[i] + offset, static_cast<size_t>(bytes - offset));
      at[i] = rest[i];
    }
    pack_quarters<kWeight, 1>(at, 0, to);
  }

  template <ThinWeight kWeight>
  static void pack_panel(const ThinPack& task) {
    alignas(64) static constexpr std::array<std::byte, kThinDepth * 4> kZeros{};
    for (int64_t first = 0; first < kColumns; first += kLanes) {
      const std::byte* column[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        column[i] = first + i < task.columns ? task.w + (first + i) * task.row_bytes : kZeros.data();
      }
      pack_columns<kWeight>(column, task.depth, task.panel + first);
    }
  }

  static void pack(const ThinPack& task) {
    switch (task.weight) {
      case ThinWeight::kF32:
        return pack_panel<ThinWeight::kF32>(task);
      case ThinWeight::kF32RoundedToBF16:
        return pack_panel<ThinWeight::kF32RoundedToBF16>(task);
      case ThinWeight::kBF16:
        return pack_panel<ThinWeight::kBF16>(task);
    }
  }

  static ZT_THIN_INLINE void ask_ahead(ThinAhead& ahead) {
    for (int64_t i = std::min(ahead.each, ahead.left); i > 0; --i) {
      __builtin_prefetch(ahead.row + ahead.line * 64, 0, 2);  // into L2
      if (++ahead.line == ahead.lines) {
        ahead.line = 0;
        ahead.row += ahead.row_bytes;
      }
      --ahead.left;
    }
  }

  template <int kRows>
  static ZT_THIN_INLINE void add_term(const float* x, const float* panel, Floats (&sums)[kRows][Isa::kVectors]) {
    Floats w[Isa::kVectors];
    for (int v = 0; v < Isa::kVectors; ++v) w[v] = Isa::load(panel + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats value = Isa::set1(x[r]);
      for (int v = 0; v < Isa::kVectors; ++v) sums[r][v] = Isa::fma(value, w[v], sums[r][v]);
    }
  }

  template <int kRows>
  static void multiply_rows(const ThinTile& t) {
    Floats sums[kRows][Isa::kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < Isa::kVectors; ++v) sums[r][v] = Isa::zero();
    const float *x = t.x, *panel = t.panel;
    int64_t k = 0;
    for (; k + 8 <= t.depth; k += 8) {
      ask_ahead(*t.ahead);
      for (int i = 0; i < 8; ++i, x += kRows, panel += kColumns) add_term<kRows>(x, panel, sums);
    }
    for (; k < t.depth; ++k, x += kRows, panel += kColumns) add_term<kRows>(x, panel, sums);
    if (t.mode == ThinSums::kGoOn) {
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < Isa::kVectors; ++v) {
          sums[r][v] = Isa::add(Isa::load(t.sums + r * kColumns + v * kLanes), sums[r][v]);
        }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < Isa::kVectors; ++v) Isa::store(t.sums + r * kColumns + v * kLanes, sums[r][v]);
  }

  static void multiply(const ThinTile& task) {
    static constexpr auto kByRows = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      return std::array<void (*)(const ThinTile&), sizeof...(kIndex)>{&multiply_rows<kIndex + 1>...};
    }
    (std::make_integer_sequence<int, Isa::kRows>{});
    kByRows[static_cast<size_t>(task.rows - 1)](task);
  }

  static constexpr ThinKernel kKernel = {kColumns, Isa::kRows, &pack, &multiply};
};

}  // namespace zoetrope::kernels
