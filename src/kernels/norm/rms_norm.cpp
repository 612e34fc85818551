// rms_norm (T5): one statistic per row.
#include <cmath>

#include "base/error.h"
#include "kernels/implementation.h"
#include "kernels/norm/norm.h"
#include "kernels/vector_math.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

template <typename In, typename Out>
void rms_row(const In* x, const Out* weight, Out* out, int64_t d, float eps) {
  const double mean = simd::sum_of_squares(x, d) / static_cast<double>(d);
  const Floats scale = simd::set(static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps))));
  simd::for_vectors(d, [&](int64_t i, auto lanes) {
    Floats y = _mm256_mul_ps(simd::load_at(x, i, lanes), scale);
    if constexpr (sizeof(Out) == sizeof(BFloat16)) {  // cast before the weight
      BFloat16 rounded[simd::kWidth];
      simd::store(rounded, y);
      y = simd::load(rounded);
    }
    simd::store_at(out, i, _mm256_mul_ps(y, simd::load_at(weight, i, lanes)), lanes);
  });
}

void rms_norm_avx2(Stream& stream, const RmsNorm& a) {
  const int64_t d = a.x.extent(1);
  with_compute_type(a.x.dtype(), "rms_norm's x", [&](auto in) {
    with_compute_type(a.out.dtype(), "rms_norm's out", [&](auto to) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(to)::type;
      stream.team().parallel_for(a.x.extent(0), std::max<int64_t>(1, 8192 / d), [&](IndexRange range, int) {
        for (int64_t row = range.begin; row < range.end; ++row)
          rms_row(a.x.data<In>() + row * a.x.stride(0), a.weight.data<Out>(), a.out.data<Out>() + row * a.out.stride(0),
                  d, a.eps);
      });
    });
  });
}

void rms_norm_reference(Stream&, const RmsNorm& a) {
  const int64_t d = a.x.extent(1);
  for (int64_t m = 0; m < a.x.extent(0); ++m) {
    double square = 0;
    for (int64_t i = 0; i < d; ++i) square += std::pow(element(a.x, m * a.x.stride(0) + i), 2);
    const double scale = 1 / std::sqrt(square / static_cast<double>(d) + static_cast<double>(a.eps));
    for (int64_t i = 0; i < d; ++i) {
      double normal = element(a.x, m * a.x.stride(0) + i) * scale;
      if (a.out.dtype() == DType::kBF16) normal = to_float(to_bfloat16(static_cast<float>(normal)));
      set_element(a.out, m * a.out.stride(0) + i, normal * element(a.weight, i));
    }
  }
}

void check(const RmsNorm& a) {
  if (a.x.rank() != 2 || !(a.out.shape() == a.x.shape()))
    fail("rms_norm: x is {} and out {}; both must be [M, d]", a.x.shape().to_string(), a.out.shape().to_string());
  for (const TensorView* t : {&a.x, &a.out}) {
    if (t->extent(1) > 1 && t->stride(1) != 1) fail("rms_norm: the last axis of x and out must be contiguous");
    if (t->dtype() != DType::kF32 && t->dtype() != DType::kBF16)
      fail("rms_norm: dtype {}, but F32 or BF16 is needed", dtype_name(t->dtype()));
  }
  if (!(a.weight.shape() == Shape{a.x.extent(1)}) || !a.weight.contiguous() || a.weight.dtype() != a.out.dtype())
    fail("rms_norm: the weight must be contiguous {} [{}], not {} {}", dtype_name(a.out.dtype()), a.x.extent(1),
         dtype_name(a.weight.dtype()), a.weight.shape().to_string());
}

constexpr Implementation<RmsNorm, void (*)(Stream&, const RmsNorm&)> kImplementations[] = {
    {"avx2", nullptr, rms_norm_avx2},
    {"reference", nullptr, rms_norm_reference},
};

}  // namespace

void rms_norm(Stream& stream, const RmsNorm& args) {
  check(args);
  const auto& implementation = choose("rms_norm", kImplementations, args, args.implementation);
  if (args.x.size() > 0) implementation.function(stream, args);
}

}  // namespace zoetrope::kernels
