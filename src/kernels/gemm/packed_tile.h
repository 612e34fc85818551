// The multiplication of a panel; included by one short file per instruction set.
//
// A tile is 6 rows of x by a panel: its sums stay in registers (24 of 32 with AVX-512, 12 of 16 with AVX2) over the
// whole depth of a step. With AVX-512 the panel is streamed from the L2 cache, with AVX2 it stays in the L1 cache; 6
// rows of x are read repeatedly from the L1 cache. Measured, two threads, 1560×512×1536, peak 351 GFLOP/s: 6×64 346;
// 8×48 347; 14×32 338 (280 with a depth of 256, so that a panel of 32 stays in the L1 cache: sums are loaded and stored
// too often); oneDNN on panels of 64 312 to 334.
#pragma once

#include "kernels/activation.h"
#include "kernels/gemm/packed_kernel.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

using simd::Floats;

constexpr int kTileVectors = simd::kWidth == 16 ? 4 : 2;
constexpr int64_t kPanelColumns = kTileVectors * simd::kWidth;

// to = from (zeros where null) + x·panel, kRows × columns of a panel.
template <int kRows>
void multiply(int64_t depth, const float* x, int64_t x_stride, const float* panel, const float* from, float* to) {
  constexpr int64_t kPrefetch = 8 * kPanelColumns;  // floats ahead: the panel's lines are read once per tile, in order
  Floats sums[kRows][kTileVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kTileVectors; ++j)
      sums[i][j] = from == nullptr ? simd::zero() : simd::load(from + i * kPanelColumns + j * simd::kWidth);
  for (int64_t k = 0; k < depth; ++k, panel += kPanelColumns) {
    Floats columns[kTileVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kTileVectors; ++j) {
      columns[j] = simd::load(panel + j * simd::kWidth);
      __builtin_prefetch(panel + kPrefetch + j * simd::kWidth);
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Floats value = simd::set(x[i * x_stride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) sums[i][j] = simd::fma(value, columns[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kTileVectors; ++j) simd::store(to + i * kPanelColumns + j * simd::kWidth, sums[i][j]);
}

using Multiply = void (*)(int64_t, const float*, int64_t, const float*, const float*, float*);
constexpr Multiply kMultiply[kTileRows + 1] = {nullptr,     multiply<1>, multiply<2>, multiply<3>,
                                               multiply<4>, multiply<5>, multiply<6>};

template <typename T>
Floats rounded_as(Floats y) {
  if constexpr (sizeof(T) == sizeof(float)) return y;
  return simd::round_to_bfloat16(y);
}

template <Activation kActivation, bool kRound, typename Out>
void finish_plain(const Epilogue& e, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = sums + row * sums_stride;
    Out* out = static_cast<Out*>(e.out) + row * e.out_stride;
    simd::for_vectors(columns, [&](int64_t i, auto lanes) {
      Floats y = simd::load_at(from, i, lanes);
      if (e.bias != nullptr) y = y + simd::load_at(e.bias, i, lanes);
      y = activation_vector<kActivation>(y);
      if constexpr (kRound) y = simd::round_to_bfloat16(y);
      simd::store_at(out, i, y, lanes);
    });
  }
}

template <typename Out>
void finish_residual(const Epilogue& e, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = sums + row * sums_stride;
    const Out* residual = static_cast<const Out*>(e.residual) + row * e.residual_stride;
    Out* out = static_cast<Out*>(e.out) + row * e.out_stride;
    simd::for_vectors(columns, [&](int64_t i, auto lanes) {
      Floats y = simd::load_at(from, i, lanes);
      if (e.bias != nullptr) y = y + simd::load_at(e.bias, i, lanes);
      y = rounded_as<Out>(y);
      const Floats base = simd::load_at(residual, i, lanes);
      if (e.gate != nullptr) y = simd::fma(y, simd::load_at(e.gate, i, lanes), base);
      else y = y + base;
      simd::store_at(out, i, y, lanes);
    });
  }
}

using Finish = void (*)(const Epilogue&, const float*, int64_t, int64_t, int64_t);

inline Finish finish_of(const Epilogue& e) {
  if (e.residual != nullptr) return e.out_dtype == DType::kBF16 ? finish_residual<BFloat16> : finish_residual<float>;
  return with_activation(e.activation, [&](auto activation) -> Finish {
    constexpr Activation kActivation = decltype(activation)::value;
    if (e.out_dtype == DType::kBF16) return finish_plain<kActivation, false, BFloat16>;
    return e.round_to_bf16 ? finish_plain<kActivation, true, float> : finish_plain<kActivation, false, float>;
  });
}

inline void finish_rows(const Epilogue& e, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns) {
  finish_of(e)(e, sums, sums_stride, rows, columns);
}

inline void multiply_panel(const PanelWork& w) {
  const Finish finish = finish_of(w.epilogue);
  alignas(64) float tile[kTileRows * kPanelColumns];
  const float* panel = static_cast<const float*>(w.panel);
  if (w.dtype == DType::kBF16) {
    const BFloat16* stored = static_cast<const BFloat16*>(w.panel);
    for (int64_t i = 0; i < w.depth * kPanelColumns; i += simd::kWidth)
      simd::store(w.widened + i, simd::load(stored + i));
    panel = w.widened;
  }
  for (int64_t row = 0; row < w.rows; row += kTileRows) {
    const int64_t rows = w.rows - row < kTileRows ? w.rows - row : kTileRows;
    float* sums = w.sums == nullptr ? nullptr : w.sums + row * kPanelColumns;
    kMultiply[rows](w.depth, w.x + row * w.x_stride, w.x_stride, panel, w.first ? nullptr : sums, w.last ? tile : sums);
    if (w.last) finish(moved(w.epilogue, row, 0), tile, kPanelColumns, rows, w.columns);
  }
}

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels
