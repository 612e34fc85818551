// Finishes a row of the direct convolution: bias, residual, rounding, the norm and SiLU of the next layer; and the
// widening of bf16. In vectors of simd.h, so for files compiled for one of its two widths.
#pragma once

#include <cmath>

#include "kernels/conv/direct.h"
#include "kernels/vector_math.h"

namespace zoetrope::kernels {
inline namespace ZOETROPE_SIMD {

// One pixel. Lanes beyond the last channel are sums of products with weights of zero, which are NaN for infinite
// inputs.
template <typename T>
struct DirectPixel {
  using Floats = simd::Floats;

  const FinishCall& call;
  float* acc;
  const T* add;
  T* raw;
  T* normed;

  static Floats rounded(Floats x) {
    if constexpr (sizeof(T) == sizeof(float)) return x;
    else return simd::round_to_bfloat16(x);
  }
  static Floats keep(Floats x, simd::Whole) { return x; }
  static Floats keep(Floats x, int64_t count) {
    float lanes[simd::kWidth];
    simd::store(lanes, x);
    return simd::load(lanes, count);
  }

  void finish() const {
    Floats squares = simd::zero();
    simd::for_vectors(call.channels, [&](int64_t i, auto lanes) {
      Floats y = simd::load(acc + i) + simd::load(call.bias + i);
      if (add != nullptr) y = y + simd::load_at(add, i, lanes);
      y = keep(rounded(y), lanes);
      if (raw != nullptr) simd::store_at(raw, i, y, lanes);
      simd::store(acc + i, y);
      squares = simd::fma(y, y, squares);
    });
    if (normed == nullptr) return;
    const auto norm = static_cast<float>(std::sqrt(simd::sum(squares)));
    const Floats scale = simd::set(call.root / (norm < 1e-12f ? 1e-12f : norm));  // in this order NaN stays NaN
    simd::for_vectors(call.channels, [&](int64_t i, auto lanes) {
      Floats y = simd::load(acc + i) * scale * simd::load(call.gamma + i);
      if (call.silu) y = simd::silu(y);
      simd::store_at(normed, i, y, lanes);
    });
  }
};

template <typename T>
void direct_finish(const FinishCall& call) {
  for (int64_t p = 0; p < call.pixels; ++p) {
    const auto at = [p](auto* base, int64_t stride) { return base == nullptr ? nullptr : base + p * stride; };
    DirectPixel<T>{call, call.acc + p * call.acc_stride, at(static_cast<const T*>(call.add), call.add_stride),
                   at(static_cast<T*>(call.raw), call.raw_stride), at(static_cast<T*>(call.normed), call.normed_stride)}
        .finish();
  }
}

inline void direct_widen(const void* from, float* to, int64_t count) {
  const auto* x = static_cast<const BFloat16*>(from);
  simd::for_vectors(count, [&](int64_t i, auto lanes) { simd::store_at(to, i, simd::load_at(x, i, lanes), lanes); });
}

// Adds the finishing functions to a table of tiles.
constexpr DirectKernels with_finish(DirectKernels kernels) {
  kernels.finish_f32 = direct_finish<float>;
  kernels.finish_bf16 = direct_finish<BFloat16>;
  kernels.widen = direct_widen;
  return kernels;
}

}  // namespace ZOETROPE_SIMD
}  // namespace zoetrope::kernels
