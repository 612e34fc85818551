// The direct convolution's inner loops as templates over a thin instruction-set type with internal linkage. Included
// once by each direct_*.cpp; nothing here may be instantiated elsewhere.
//
// A tile of 8 pixels × 3 vectors keeps 24 of 32 registers as accumulators, so that a step of k costs 3 loads of weights
// and 8 broadcasts for 24 multiply-adds. Weights come from the second cache level, 16 bytes a cycle, which the core
// streams while it multiplies: 92–94 % of the peak of two cores (96 to 384 channels, Emerald Rapids). 9×3 is the same
// within the noise and does not divide the usual widths; prefetching weights by hand gained nothing,
// and keeping a slab of weights in the first level, with sums going through memory between slabs, lost 2 to 5 %.
#pragma once

#include "kernels/conv/direct.h"

namespace zoetrope::kernels {

#define ZT_CONV_INLINE inline __attribute__((always_inline))

template <typename Isa, int kPixels, int kVectors>
void direct_tile(const TileCall& call) {
  using Vec = typename Isa::Vec;
  using Element = typename Isa::Element;
  using Operand = typename Isa::Operand;
  constexpr int kWidth = kVectors * Isa::kLanes;
  Vec acc[kPixels][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      acc[p][v] = call.accumulate ? Isa::load(call.acc + p * call.acc_stride + v * Isa::kLanes) : Isa::zero();
  }
  const Element* weights = static_cast<const Element*>(call.weights);
  const int64_t stride = call.pixel_stride, steps = call.run_length / Isa::kPair;
  for (int64_t run = 0; run < call.run_count; ++run) {
    // Three bases: the pixels between are one or two strides away, which an address can hold.
    const Element* x0 = static_cast<const Element*>(call.runs[run]);
    const Element* x3 = x0 + 3 * stride;
    const Element* x6 = x3 + 3 * stride;
#pragma GCC unroll 4
    for (int64_t k = 0; k < steps; ++k) {
      Operand w[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) w[v] = Isa::operand(weights + v * Isa::kLanes * Isa::kPair);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        const Element* x = p < 3 ? x0 + p * stride : p < 6 ? x3 + (p - 3) * stride : x6 + (p - 6) * stride;
        const Operand value = Isa::broadcast(x + k * Isa::kPair);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) acc[p][v] = Isa::dot(acc[p][v], value, w[v]);
      }
      weights += kWidth * Isa::kPair;
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) Isa::store(call.acc + p * call.acc_stride + v * Isa::kLanes, acc[p][v]);
  }
}

// Three output channels fill 3 of 16 lanes above; here lanes are inputs, and a pixel's sum is folded once at its end.
template <typename Isa, int kPixels>
void direct_narrow_tile(const TileCall& call) {
  using Vec = typename Isa::Vec;
  constexpr int kOut = kNarrowChannels;
  Vec acc[kPixels][kOut];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int o = 0; o < kOut; ++o) acc[p][o] = Isa::zero();
  }
  const float* weights = static_cast<const float*>(call.weights);
  const int64_t stride = call.pixel_stride;
  for (int64_t run = 0; run < call.run_count; ++run) {
    const float* x0 = static_cast<const float*>(call.runs[run]);
    const float* x3 = x0 + 3 * stride;
    const float* x6 = x3 + 3 * stride;
    for (int64_t k = 0; k < call.run_length; k += Isa::kLanes) {
      Vec w[kOut];
#pragma GCC unroll 3
      for (int o = 0; o < kOut; ++o) w[o] = Isa::load(weights + o * call.run_length + k);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        const float* x = p < 3 ? x0 + p * stride : p < 6 ? x3 + (p - 3) * stride : x6 + (p - 6) * stride;
        const Vec value = Isa::load(x + k);
#pragma GCC unroll 3
        for (int o = 0; o < kOut; ++o) acc[p][o] = Isa::fma(value, w[o], acc[p][o]);
      }
    }
    weights += kOut * call.run_length;
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
    float* to = call.acc + p * call.acc_stride;
#pragma GCC unroll 3
    for (int o = 0; o < kOut; ++o) to[o] = (call.accumulate ? to[o] : 0.0f) + Isa::sum(acc[p][o]);
  }
}

// e^x to about two ulp: x = n·ln 2 + r, a degree-6 polynomial in r (coefficients of Cephes expf), then 2^n.
template <typename Isa>
ZT_CONV_INLINE typename Isa::Vec direct_exp(typename Isa::Vec x) {
  using Vec = typename Isa::Vec;
  x = Isa::clamp(x, -104.0f, 89.0f);
  const Vec n = Isa::round(Isa::mul(x, Isa::set1(1.44269504088896341f)));
  Vec r = Isa::fma(n, Isa::set1(-0.693359375f), x);
  r = Isa::fma(n, Isa::set1(2.12194440e-4f), r);
  Vec p = Isa::set1(1.9875691500e-4f);
  p = Isa::fma(p, r, Isa::set1(1.3981999507e-3f));
  p = Isa::fma(p, r, Isa::set1(8.3334519073e-3f));
  p = Isa::fma(p, r, Isa::set1(4.1665795894e-2f));
  p = Isa::fma(p, r, Isa::set1(1.6666665459e-1f));
  p = Isa::fma(p, r, Isa::set1(5.0000001201e-1f));
  p = Isa::fma(p, Isa::mul(r, r), r);
  return Isa::times_two_to(Isa::add(p, Isa::set1(1.0f)), n);
}

// kWhole: every vector is full; what is left of a row comes with its count.
template <typename Isa, typename T>
struct DirectFinish {
  using Vec = typename Isa::Vec;
  static constexpr int64_t kLanes = Isa::kLanes;

  const FinishCall& call;
  float* acc;
  const T* add;
  T* raw;
  T* normed;

  template <typename Count>
  ZT_CONV_INLINE Vec write_raw(int64_t i, Vec squares, Count count) const {
    Vec y = Isa::add(Isa::load(acc + i), Isa::load(call.bias + i));
    if (add != nullptr) y = Isa::add(y, Isa::load(add + i, count));
    y = Isa::keep(Isa::rounded(y, static_cast<const T*>(nullptr)), count);
    if (raw != nullptr) Isa::store(raw + i, y, count);
    Isa::store(acc + i, y);
    return Isa::fma(y, y, squares);
  }

  template <typename Count>
  ZT_CONV_INLINE void write_normed(int64_t i, Vec scale, Count count) const {
    Vec y = Isa::mul(Isa::mul(Isa::load(acc + i), scale), Isa::load(call.gamma + i));
    if (call.silu) {
      const Vec grown = direct_exp<Isa>(Isa::negative(y));
      y = Isa::divide(y, Isa::add(Isa::set1(1.0f), grown));
    }
    Isa::store(normed + i, y, count);
  }

  ZT_CONV_INLINE void pixel() const {
    const int64_t whole = call.channels / kLanes * kLanes;
    const auto rest = static_cast<int>(call.channels - whole);
    Vec squares = Isa::zero();
    for (int64_t i = 0; i < whole; i += kLanes) squares = write_raw(i, squares, typename Isa::Whole{});
    if (rest > 0) squares = write_raw(whole, squares, rest);
    if (normed == nullptr) return;
    const float norm = Isa::square_root(Isa::sum(squares));
    const Vec scale = Isa::set1(call.root / (norm < 1e-12f ? 1e-12f : norm));  // in this order NaN stays NaN
    for (int64_t i = 0; i < whole; i += kLanes) write_normed(i, scale, typename Isa::Whole{});
    if (rest > 0) write_normed(whole, scale, rest);
  }
};

template <typename Isa, typename T>
void direct_finish(const FinishCall& call) {
  for (int64_t p = 0; p < call.pixels; ++p) {
    const auto at = [p](auto* base, int64_t stride) { return base == nullptr ? nullptr : base + p * stride; };
    DirectFinish<Isa, T>{call, call.acc + p * call.acc_stride, at(static_cast<const T*>(call.add), call.add_stride),
                         at(static_cast<T*>(call.raw), call.raw_stride),
                         at(static_cast<T*>(call.normed), call.normed_stride)}
        .pixel();
  }
}

template <typename Isa>
void direct_widen(const void* from, float* to, int64_t count) {
  const auto* x = static_cast<const typename Isa::Half*>(from);
  int64_t i = 0;
  for (; i + Isa::kLanes <= count; i += Isa::kLanes) Isa::store(to + i, Isa::load(x + i, typename Isa::Whole{}));
  for (; i < count; ++i) to[i] = Isa::widen(x[i]);
}

// The table of an instruction set. Products of bf16 pairs have no narrow tiles: few channels go through float.
template <typename Isa, typename Products>
constexpr DirectKernels direct_kernels() {
  DirectKernels kernels{};
  kernels.lanes = Isa::kLanes;
  kernels.pixels = Isa::kPixels;
  kernels.vectors = 3;
  kernels.pair = Products::kPair;
#define ZT_CONV_TILES(P)                                                                    \
  if constexpr (P <= Isa::kPixels) {                                                        \
    kernels.tile[P - 1][0] = direct_tile<Products, P, 1>;                                   \
    kernels.tile[P - 1][1] = direct_tile<Products, P, 2>;                                   \
    kernels.tile[P - 1][2] = direct_tile<Products, P, 3>;                                   \
    if constexpr (Products::kPair == 1) kernels.narrow[P - 1] = direct_narrow_tile<Isa, P>; \
  }
  ZT_CONV_TILES(1)
  ZT_CONV_TILES(2)
  ZT_CONV_TILES(3)
  ZT_CONV_TILES(4)
  ZT_CONV_TILES(5)
  ZT_CONV_TILES(6)
  ZT_CONV_TILES(7)
  ZT_CONV_TILES(8)
#undef ZT_CONV_TILES
  kernels.finish_f32 = direct_finish<Isa, float>;
  kernels.finish_bf16 = direct_finish<Isa, typename Isa::Half>;
  kernels.widen = direct_widen<Isa>;
  return kernels;
}

}  // namespace zoetrope::kernels
