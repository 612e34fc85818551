#include <cmath>

#include "base/error.h"
#include "kernels/implementation.h"
#include "kernels/norm/norm.h"
#include "kernels/simd.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

// The vectors of one row; null where the call has none.
struct RowVectors {
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
};

template <bool kAffine, bool kModulated, bool kRound, typename In, typename Out>
void norm_row(const In* x, Out* out, int64_t d, float eps, const RowVectors& v) {
  const double mean =
      simd::row_sum(x, d, [](Floats value, Floats into) { return into + value; }) / static_cast<double>(d);
  const Floats centre = simd::set(static_cast<float>(mean));
  const double squares = simd::row_sum(x, d, [&](Floats value, Floats into) {
    const Floats distance = value - centre;
    return simd::fma(distance, distance, into);
  });
  const double deviation = std::sqrt(squares / static_cast<double>(d) + static_cast<double>(eps));
  const Floats scale = simd::set(static_cast<float>(1.0 / deviation));
  simd::for_vectors(d, [&](int64_t i, auto lanes) {
    Floats y = (simd::load_at(x, i, lanes) - centre) * scale;
    if constexpr (kAffine) y = simd::fma(y, simd::load_at(v.weight, i, lanes), simd::load_at(v.bias, i, lanes));
    if constexpr (kModulated) {
      const Floats factor = simd::set(1.0f) + simd::load_at(v.scale, i, lanes);
      y = simd::fma(y, factor, simd::load_at(v.shift, i, lanes));
    }
    if constexpr (kRound) y = simd::round_to_bfloat16(y);
    simd::store_at(out, i, y, lanes);
  });
}

template <bool kRound, typename In, typename Out>
void norm_rows(Stream& stream, const LayerNorm& a) {
  const int64_t tokens = a.x.extent(1), d = a.x.extent(2);
  const int64_t token_scale = a.scale && a.scale.extent(1) != 1 ? a.scale.stride(1) : 0;
  const int64_t token_shift = a.shift && a.shift.extent(1) != 1 ? a.shift.stride(1) : 0;
  const auto rows = [&](auto row_function) {
    stream.team().parallel_for(a.x.extent(0) * tokens, std::max<int64_t>(1, 8192 / d), [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const int64_t b = row / tokens, s = row % tokens;
        RowVectors v;
        if (a.weight) v.weight = a.weight.data<float>(), v.bias = a.bias.data<float>();
        if (a.scale) {
          v.scale = a.scale.data<float>() + b * a.scale.stride(0) + s * token_scale;
          v.shift = a.shift.data<float>() + b * a.shift.stride(0) + s * token_shift;
        }
        row_function(a.x.data<In>() + b * a.x.stride(0) + s * a.x.stride(1),
                     a.out.data<Out>() + b * a.out.stride(0) + s * a.out.stride(1), d, a.eps, v);
      }
    });
  };
  if (a.weight && a.scale) rows(norm_row<true, true, kRound, In, Out>);
  else if (a.weight) rows(norm_row<true, false, kRound, In, Out>);
  else if (a.scale) rows(norm_row<false, true, kRound, In, Out>);
  else rows(norm_row<false, false, kRound, In, Out>);
}

void layer_norm_avx2(Stream& stream, const LayerNorm& a) {
  with_compute_type(a.x.dtype(), "layer_norm's x", [&](auto in) {
    with_compute_type(a.out.dtype(), "layer_norm's out", [&](auto out) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(out)::type;
      if (a.round_to_bf16) norm_rows<true, In, Out>(stream, a);
      else norm_rows<false, In, Out>(stream, a);
    });
  });
}

void layer_norm_reference(Stream&, const LayerNorm& a) {
  const int64_t d = a.x.extent(2);
  const auto count = static_cast<double>(d);
  for (int64_t b = 0; b < a.x.extent(0); ++b) {
    for (int64_t s = 0; s < a.x.extent(1); ++s) {
      const int64_t row = b * a.x.stride(0) + s * a.x.stride(1);
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < d; ++i) mean += element(a.x, row + i) / count;
      for (int64_t i = 0; i < d; ++i) variance += std::pow(element(a.x, row + i) - mean, 2) / count;
      for (int64_t i = 0; i < d; ++i) {
        double y = (element(a.x, row + i) - mean) / std::sqrt(variance + static_cast<double>(a.eps));
        if (a.weight) y = y * element(a.weight, i) + element(a.bias, i);
        if (a.scale) {
          const int64_t token = a.scale.extent(1) == 1 ? 0 : s;
          y = y * (1 + element(a.scale, b * a.scale.stride(0) + token * a.scale.stride(1) + i)) +
              element(a.shift, b * a.shift.stride(0) + token * a.shift.stride(1) + i);
        }
        if (a.round_to_bf16) y = to_float(to_bfloat16(static_cast<float>(y)));
        set_element(a.out, b * a.out.stride(0) + s * a.out.stride(1) + i, y);
      }
    }
  }
}

void check(const LayerNorm& a) {
  if (a.x.rank() != 3 || !(a.out.shape() == a.x.shape()))
    fail("layer_norm: x is {} and out {}; both must be [B, S, d]", a.x.shape().to_string(), a.out.shape().to_string());
  const int64_t d = a.x.extent(2);
  const auto last_contiguous = [](const TensorView& t) { return t.extent(-1) <= 1 || t.stride(-1) == 1; };
  if (!last_contiguous(a.x) || !last_contiguous(a.out))
    fail("layer_norm: the last axis of x and out must be contiguous");
  if (static_cast<bool>(a.weight) != static_cast<bool>(a.bias)) fail("layer_norm: weight and bias must come together");
  if (static_cast<bool>(a.scale) != static_cast<bool>(a.shift)) fail("layer_norm: scale and shift must come together");
  for (const TensorView* t : {&a.weight, &a.bias}) {
    if (*t && (t->dtype() != DType::kF32 || !(t->shape() == Shape{d}) || !t->contiguous()))
      fail("layer_norm: weight and bias must be contiguous F32 [{}], not {} {}", d, dtype_name(t->dtype()),
           t->shape().to_string());
  }
  for (const TensorView* t : {&a.scale, &a.shift}) {
    if (!*t) continue;
    const bool fits = t->rank() == 3 && t->extent(0) == a.x.extent(0) && t->extent(2) == d &&
                      (t->extent(1) == 1 || t->extent(1) == a.x.extent(1));
    if (!fits || t->dtype() != DType::kF32 || !last_contiguous(*t))
      fail("layer_norm: scale and shift must be F32 [B, 1, d] or [B, S, d] for x {}, not {} {}",
           a.x.shape().to_string(), dtype_name(t->dtype()), t->shape().to_string());
  }
}

constexpr Implementation<LayerNorm, void (*)(Stream&, const LayerNorm&)> kImplementations[] = {
    {"avx2", nullptr, layer_norm_avx2},
    {"reference", nullptr, layer_norm_reference},
};

}  // namespace

void layer_norm(Stream& stream, const LayerNorm& args) {
  check(args);
  const auto& implementation = choose("layer_norm", kImplementations, args, args.implementation);
  if (args.x.size() > 0) implementation.function(stream, args);
}

}  // namespace zoetrope::kernels
