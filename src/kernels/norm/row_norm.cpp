// rms_norm (T5): one statistic per row, no heads.
#include <cmath>

#include "base/error.h"
#include "kernels/implementation.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/reference.h"
#include "kernels/vector_math.h"
#include "tensor/dispatch.h"

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

void check_rows(const char* op, const TensorView& x, const TensorView& out, const TensorView& weight,
                DType weight_dtype) {
  if (x.rank() != 2 || !(out.shape() == x.shape()))
    fail("{}: x is {} and out {}; both must be [M, d]", op, x.shape().to_string(), out.shape().to_string());
  for (const TensorView* t : {&x, &out}) {
    if (t->extent(1) > 1 && t->stride(1) != 1) fail("{}: the last axis of x and out must be contiguous", op);
    if (t->dtype() != DType::kF32 && t->dtype() != DType::kBF16)
      fail("{}: dtype {}, but F32 or BF16 is needed", op, dtype_name(t->dtype()));
  }
  if (!(weight.shape() == Shape{x.extent(1)}) || !weight.contiguous() || weight.dtype() != weight_dtype)
    fail("{}: the weight must be contiguous {} [{}], not {} {}", op, dtype_name(weight_dtype), x.extent(1),
         dtype_name(weight.dtype()), weight.shape().to_string());
}

Refusal refuse_no_rms(const RmsNorm&) { return {}; }

constexpr Implementation<RmsNorm, void (*)(Stream&, const RmsNorm&)> kRmsNorms[] = {
    {"avx2", refuse_no_rms, rms_norm_avx2},
    {"reference", refuse_no_rms, rms_norm_reference},
};

}  // namespace

void rms_norm(Stream& stream, const RmsNorm& args) {
  check_rows("rms_norm", args.x, args.out, args.weight, args.out.dtype());
  const auto& implementation = choose("rms_norm", kRmsNorms, args, args.implementation);
  if (args.x.size() > 0) implementation.function(stream, args);
}

}  // namespace zoetrope::kernels
