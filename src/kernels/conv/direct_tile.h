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

// The tiles of an instruction set. Products of bf16 pairs have no narrow ones: few channels go through float.
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
  return kernels;
}

}  // namespace zoetrope::kernels
