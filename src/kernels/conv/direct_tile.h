// The direct convolution's inner loops as templates over a type of products. Included once by each direct_*.cpp; the
// type has internal linkage, so no instance is shared between files compiled for different instruction sets.
//
// A tile of 8 pixels × 3 vectors keeps 24 of 32 registers as accumulators, so that a step of k costs 3 loads of weights
// and 8 broadcasts for 24 multiply-adds. Weights are streamed from the L2 cache, 16 bytes per cycle, during the
// multiplication: 92–94 % of the peak of two cores (96 to 384 channels, Emerald Rapids). 9×3 is the same within the
// noise and does not divide the usual widths; prefetching weights explicitly gained nothing, and keeping a slab of
// weights in the L1 cache, with sums in memory between slabs, lost 2 to 5 %.
#pragma once

#include <utility>

#include "kernels/conv/direct.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {

#define ZT_CONV_INLINE inline __attribute__((always_inline))

namespace {

// Products of floats. Accumulators are vectors of floats whatever is multiplied.
struct FloatProducts {
  static constexpr int kLanes = simd::kWidth;
  static constexpr int kPixels = kLanes == 16 ? 8 : 4;
  static constexpr int kPair = 1;  // values that one product sums
  using Vec = simd::Floats;
  using Operand = simd::Floats;
  using Element = float;

  static ZT_CONV_INLINE Vec zero() { return simd::zero(); }
  static ZT_CONV_INLINE Vec load(const float* x) { return simd::load(x); }
  static ZT_CONV_INLINE void store(float* to, Vec x) { simd::store(to, x); }
  static ZT_CONV_INLINE Vec widened(const float* x) { return simd::load(x); }
  static ZT_CONV_INLINE Vec widened(const BFloat16* x) { return simd::load(x); }
  // As Element, which is float here.
  static ZT_CONV_INLINE void store_rounded(float* to, Vec x) { simd::store(to, x); }
  static ZT_CONV_INLINE Operand operand(const float* x) { return simd::load(x); }
  static ZT_CONV_INLINE Operand broadcast(const float* x) { return simd::set(*x); }
  static ZT_CONV_INLINE Vec dot(Vec acc, Operand a, Operand b) { return simd::fma(a, b, acc); }
  static ZT_CONV_INLINE float sum(Vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps(x);
#else
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
  }
};

}  // namespace

template <typename Products, int kPixels, int kVectors>
void direct_tile(const TileCall& call) {
  using Vec = typename Products::Vec;
  using Element = typename Products::Element;
  using Operand = typename Products::Operand;
  constexpr int kWidth = kVectors * Products::kLanes;
  Vec acc[kPixels][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      acc[p][v] =
          call.accumulate ? Products::load(call.acc + p * call.acc_stride + v * Products::kLanes) : Products::zero();
  }
  const Element* weights = static_cast<const Element*>(call.weights);
  const int64_t stride = call.pixel_stride, steps = call.run_length / Products::kPair;
  for (int64_t run = 0; run < call.run_count; ++run) {
    // Three base addresses: the other pixels are one or two strides away, which an addressing mode can express.
    const Element* x0 = static_cast<const Element*>(call.runs[run]);
    const Element* x3 = x0 + 3 * stride;
    const Element* x6 = x3 + 3 * stride;
#pragma GCC unroll 4
    for (int64_t k = 0; k < steps; ++k) {
      Operand w[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) w[v] = Products::operand(weights + v * Products::kLanes * Products::kPair);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        const Element* x = p < 3 ? x0 + p * stride : p < 6 ? x3 + (p - 3) * stride : x6 + (p - 6) * stride;
        const Operand value = Products::broadcast(x + k * Products::kPair);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) acc[p][v] = Products::dot(acc[p][v], value, w[v]);
      }
      weights += kWidth * Products::kPair;
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      Products::store(call.acc + p * call.acc_stride + v * Products::kLanes, acc[p][v]);
  }
}

// For three output channels, which would fill 3 of 16 lanes above: here lanes are inputs, and a pixel's sum is reduced
// once at its end.
template <typename Products, int kPixels>
void direct_narrow_tile(const TileCall& call) {
  using Vec = typename Products::Vec;
  constexpr int kOut = kNarrowChannels;
  Vec acc[kPixels][kOut];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 3
    for (int o = 0; o < kOut; ++o) acc[p][o] = Products::zero();
  }
  const float* weights = static_cast<const float*>(call.weights);
  const int64_t stride = call.pixel_stride;
  for (int64_t run = 0; run < call.run_count; ++run) {
    const float* x0 = static_cast<const float*>(call.runs[run]);
    const float* x3 = x0 + 3 * stride;
    const float* x6 = x3 + 3 * stride;
    for (int64_t k = 0; k < call.run_length; k += Products::kLanes) {
      Vec w[kOut];
#pragma GCC unroll 3
      for (int o = 0; o < kOut; ++o) w[o] = Products::load(weights + o * call.run_length + k);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        const float* x = p < 3 ? x0 + p * stride : p < 6 ? x3 + (p - 3) * stride : x6 + (p - 6) * stride;
        const Vec value = Products::load(x + k);
#pragma GCC unroll 3
        for (int o = 0; o < kOut; ++o) acc[p][o] = Products::dot(acc[p][o], value, w[o]);
      }
    }
    weights += kOut * call.run_length;
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
    float* to = call.acc + p * call.acc_stride;
#pragma GCC unroll 3
    for (int o = 0; o < kOut; ++o) to[o] = (call.accumulate ? to[o] : 0.0f) + Products::sum(acc[p][o]);
  }
}

// The tiles of every size. Products of bf16 pairs have no narrow ones: few channels are multiplied in float.
template <typename Products>
constexpr DirectKernels direct_kernels() {
  DirectKernels kernels{};
  kernels.lanes = Products::kLanes;
  kernels.pixels = Products::kPixels;
  kernels.vectors = 3;
  kernels.pair = Products::kPair;
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((kernels.tile[kIndex][0] = direct_tile<Products, kIndex + 1, 1>,
      kernels.tile[kIndex][1] = direct_tile<Products, kIndex + 1, 2>,
      kernels.tile[kIndex][2] = direct_tile<Products, kIndex + 1, 3>),
     ...);
    if constexpr (Products::kPair == 1) ((kernels.narrow[kIndex] = direct_narrow_tile<Products, kIndex + 1>), ...);
  }
  (std::make_integer_sequence<int, Products::kPixels>{});
  return kernels;
}

}  // namespace zoetrope::kernels
