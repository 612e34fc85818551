// The transforms of Winograd's F(2×2, 3×3) as templates over a type of products; included as direct_tile.h is. With
//
//   Bᵀ = 1  0 −1  0    G = 1  0  0     Aᵀ = 1  1  1  0
//        0  1  1  0        ½  ½  ½          0  1 −1 −1
//        0 −1  1  0        ½ −½  ½
//        0  1  0 −1        0  0  1
//
// two outputs of one axis are Aᵀ·((G·w) ∘ (Bᵀ·x)), along rows and columns. The first output does not depend on x₃ and
// the second not on x₀, to the last bit: a tile at a border is computed with anything in their place.
//
// Sums are float32 and rounded once, to the type that is multiplied. Columns are transformed vertically once and shared
// by adjacent tiles.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/conv/direct.h"
#include "kernels/conv/direct_tile.h"

namespace zoetrope::kernels {

// Lanes are whole vectors, or the first `count` of one. Inputs are read as Input and stored as what is multiplied.
template <typename Products, typename Input, bool kWhole>
struct WinogradLanes {
  using Vec = typename Products::Vec;
  using Element = typename Products::Element;
  int64_t count;

  ZT_CONV_INLINE Vec load(const Input* x) const {
    if constexpr (kWhole) return Products::widened(x);
    Input lanes[Products::kLanes] = {};
    __builtin_memcpy(lanes, x, static_cast<size_t>(count) * sizeof(Input));
    return Products::widened(lanes);
  }
  ZT_CONV_INLINE void store(Element* to, Vec x) const {
    if constexpr (kWhole) return Products::store_rounded(to, x);
    Element lanes[Products::kLanes];
    Products::store_rounded(lanes, x);
    __builtin_memcpy(to, lanes, static_cast<size_t>(count) * sizeof(Element));
  }
};

// One vector of channels of consecutive tiles.
template <typename Products, typename Input, bool kWhole>
ZT_CONV_INLINE void winograd_input_vector(const WinogradInputCall& call, int64_t first, int64_t last, int64_t channel,
                                          WinogradLanes<Products, Input, kWhole> lanes) {
  using Vec = typename Products::Vec;
  using Element = typename Products::Element;
  const Input* rows[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    rows[i] = static_cast<const Input*>(call.rows[i]) + 2 * first * call.pixel_stride + channel;
  Element* to = static_cast<Element*>(call.out) + first * call.tile_stride + channel;
  Vec x[4][4];  // [column][vertical point]
  const auto column = [&](int j, int64_t at) __attribute__((always_inline)) {
    const Vec a = lanes.load(rows[0] + at), b = lanes.load(rows[1] + at);
    const Vec c = lanes.load(rows[2] + at), d = lanes.load(rows[3] + at);
    x[j][0] = a - c;
    x[j][1] = b + c;
    x[j][2] = c - b;
    x[j][3] = b - d;
  };
  column(0, 0);
  column(1, call.pixel_stride);
  for (int64_t tile = first; tile < last; ++tile, to += call.tile_stride) {
    column(2, 2 * call.pixel_stride);
    column(3, tile + 1 < call.tiles || call.last_column ? 3 * call.pixel_stride : 2 * call.pixel_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      rows[i] += 2 * call.pixel_stride;
      Element* point = to + 4 * i * call.point_stride;
      lanes.store(point, x[0][i] - x[2][i]);
      lanes.store(point + call.point_stride, x[1][i] + x[2][i]);
      lanes.store(point + 2 * call.point_stride, x[2][i] - x[1][i]);
      lanes.store(point + 3 * call.point_stride, x[1][i] - x[3][i]);
      x[0][i] = x[2][i];
      x[1][i] = x[3][i];
    }
  }
}

template <typename Products, typename Input>
void winograd_input(const WinogradInputCall& call) {
  constexpr int64_t kTiles = 8;  // whose inputs stay in the L1 cache from one vector of channels to the next
  constexpr int64_t kLanes = Products::kLanes;
  for (int64_t first = 0; first < call.tiles; first += kTiles) {
    const int64_t last = std::min(first + kTiles, call.tiles);
    int64_t c = 0;
    for (; c + kLanes <= call.channels; c += kLanes)
      winograd_input_vector(call, first, last, c, WinogradLanes<Products, Input, true>{kLanes});
    if (c < call.channels)
      winograd_input_vector(call, first, last, c, WinogradLanes<Products, Input, false>{call.channels - c});
  }
}

template <typename Products>
void winograd_output(const WinogradOutputCall& call) {
  using Vec = typename Products::Vec;
  constexpr int64_t kLanes = Products::kLanes;
  for (int64_t tile = 0; tile < call.tiles; ++tile) {
    for (int64_t c = 0; c < call.channels; c += kLanes) {
      const float* from = call.sums + tile * call.tile_stride + c;
      Vec x[2][4];  // [row of outputs][horizontal point]
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Vec m0 = Products::load(from + j * call.point_stride);
        const Vec m1 = Products::load(from + (4 + j) * call.point_stride);
        const Vec m2 = Products::load(from + (8 + j) * call.point_stride);
        const Vec m3 = Products::load(from + (12 + j) * call.point_stride);
        x[0][j] = m0 + (m1 + m2);
        x[1][j] = (m1 - m2) - m3;
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        if (call.rows[i] == nullptr) continue;
        float* to = call.rows[i] + 2 * tile * call.pixel_stride + c;
        Products::store(to, x[i][0] + (x[i][1] + x[i][2]));
        Products::store(to + call.pixel_stride, (x[i][1] - x[i][2]) - x[i][3]);
      }
    }
  }
}

// G·w·Gᵀ, a vector of output channels at a time.
template <typename Products, typename Tap>
void winograd_weights(const WinogradWeightCall& call) {
  using Vec = typename Products::Vec;
  const Tap* taps = static_cast<const Tap*>(call.taps);
  const Vec half = simd::set(0.5f);
  for (int64_t c = 0; c < call.columns; c += Products::kLanes) {
    Vec rows[4][3];  // [vertical point][column of taps]
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j) {
      const Vec a = Products::widened(taps + j * call.columns + c);
      const Vec b = Products::widened(taps + (3 + j) * call.columns + c);
      const Vec d = Products::widened(taps + (6 + j) * call.columns + c);
      rows[0][j] = a;
      rows[1][j] = ((a + d) + b) * half;
      rows[2][j] = ((a + d) - b) * half;
      rows[3][j] = d;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* to = call.points + 4 * i * call.point_stride + c;
      const Vec ends = rows[i][0] + rows[i][2];
      Products::store(to, rows[i][0]);
      Products::store(to + call.point_stride, (ends + rows[i][1]) * half);
      Products::store(to + 2 * call.point_stride, (ends - rows[i][1]) * half);
      Products::store(to + 3 * call.point_stride, rows[i][2]);
    }
  }
}

// Adds the transforms to a table of tiles.
template <typename Products>
constexpr DirectKernels with_winograd(DirectKernels kernels) {
  using Element = typename Products::Element;
  if constexpr (Products::kPair == 1) {
    kernels.winograd_input_f32 = winograd_input<Products, float>;
    kernels.winograd_input_bf16 = winograd_input<Products, BFloat16>;
    kernels.winograd_weights_f32 = winograd_weights<Products, float>;
    kernels.winograd_weights_bf16 = winograd_weights<Products, BFloat16>;
  } else {
    kernels.winograd_input_bf16 = winograd_input<Products, Element>;
  }
  kernels.winograd_output = winograd_output<Products>;
  return kernels;
}

}  // namespace zoetrope::kernels
