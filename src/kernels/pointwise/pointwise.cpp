#include "kernels/pointwise/pointwise.h"

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/implementation.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"

namespace zoetrope::kernels {
namespace {

using simd::Floats;

constexpr int64_t kGrain = 8192;  // elements per thread: below that, waking the team costs more than the work

// The views of one call; those that an op does not use are empty.
struct Args {
  TensorView x, a, b, out;
  Activation activation = Activation::kNone;
};
using Function = void (*)(Stream&, const Args&);

// Runs vector or scalar code; the arguments were checked.
template <Function kVector, Function kScalar>
void run(const char* op, Stream& stream, const Args& args, std::string_view forced) {
  static constexpr Implementation<Args, Function> kList[] = {
      {"avx2", nullptr, kVector},
      {"reference", nullptr, kScalar},
  };
  const auto& implementation = choose(op, kList, args, forced);
  if (args.out.size() > 0) implementation.function(stream, args);
}

// Element offset of the row (all axes but the last) with this number in row-major order.
int64_t row_offset(const TensorView& view, int64_t row) {
  int64_t offset = 0;
  for (int axis = view.rank() - 2; axis >= 0; --axis) {
    offset += row % view.extent(axis) * view.stride(axis);
    row /= view.extent(axis);
  }
  return offset;
}

int64_t row_length(const TensorView& view) { return view.rank() == 0 ? 1 : view.extent(view.rank() - 1); }

// body(In{}, Out{}) for the dtypes of two views.
template <typename Body>
void with_types(const TensorView& in, const TensorView& out, Body&& body) {
  with_compute_type(in.dtype(), "the input",
                    [&](auto from) { with_compute_type(out.dtype(), "the output", [&](auto to) { body(from, to); }); });
}

// ---- gated_add ------------------------------------------------------------------------------------------------------

int64_t gate_offset(const TensorView& gate, int64_t b, int64_t s) {
  return b * gate.stride(0) + (gate.extent(1) == 1 ? 0 : s * gate.stride(1));
}

template <bool kGated, typename X, typename A, typename Out>
void gated_row(const X* x, const A* a, const float* gate, Out* out, int64_t d) {
  simd::for_vectors(d, [&](int64_t i, auto lanes) {
    const Floats base = simd::load_at(x, i, lanes), addend = simd::load_at(a, i, lanes);
    if constexpr (kGated) simd::store_at(out, i, simd::fma(addend, simd::load_at(gate, i, lanes), base), lanes);
    else simd::store_at(out, i, _mm256_add_ps(base, addend), lanes);
  });
}

template <typename X, typename A, typename Out>
void gated_rows(Stream& stream, const Args& v) {
  const int64_t tokens = v.x.extent(1), d = v.x.extent(2);
  stream.team().parallel_for(v.x.extent(0) * tokens, std::max<int64_t>(1, kGrain / d), [&](IndexRange range, int) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t b = row / tokens, s = row % tokens;
      const X* x = v.x.data<X>() + b * v.x.stride(0) + s * v.x.stride(1);
      const A* a = v.a.data<A>() + b * v.a.stride(0) + s * v.a.stride(1);
      Out* out = v.out.data<Out>() + b * v.out.stride(0) + s * v.out.stride(1);
      if (v.b) gated_row<true>(x, a, v.b.data<float>() + gate_offset(v.b, b, s), out, d);
      else gated_row<false>(x, a, static_cast<const float*>(nullptr), out, d);
    }
  });
}

void gated_add_vector(Stream& stream, const Args& v) {
  with_types(v.x, v.out, [&](auto x, auto out) {
    with_compute_type(v.a.dtype(), "gated_add's a", [&](auto a) {
      gated_rows<typename decltype(x)::type, typename decltype(a)::type, typename decltype(out)::type>(stream, v);
    });
  });
}

void gated_add_scalar(Stream&, const Args& v) {
  for (int64_t b = 0; b < v.x.extent(0); ++b)
    for (int64_t s = 0; s < v.x.extent(1); ++s)
      for (int64_t i = 0; i < v.x.extent(2); ++i) {
        const double gate = v.b ? v.b.data<float>()[gate_offset(v.b, b, s) + i] : 1.0;
        const double x = element(v.x, b * v.x.stride(0) + s * v.x.stride(1) + i);
        const double a = element(v.a, b * v.a.stride(0) + s * v.a.stride(1) + i);
        set_element(v.out, b * v.out.stride(0) + s * v.out.stride(1) + i, x + a * gate);
      }
}

// ---- activate -------------------------------------------------------------------------------------------------------

void activate_vector(Stream& stream, const Args& v) {
  with_types(v.x, v.out, [&](auto from, auto to) {
    const auto* x = v.x.data<typename decltype(from)::type>();
    auto* out = v.out.data<typename decltype(to)::type>();
    with_activation(v.activation, [&](auto activation) {
      stream.team().parallel_for(v.x.size(), kGrain, [&](IndexRange range, int) {
        simd::for_vectors(range.size(), [&](int64_t i, auto lanes) {
          const Floats y = activation_vector<decltype(activation)::value>(simd::load_at(x + range.begin, i, lanes));
          simd::store_at(out + range.begin, i, y, lanes);
        });
      });
    });
  });
}

void activate_scalar(Stream&, const Args& v) {
  for (int64_t i = 0; i < v.x.size(); ++i) set_element(v.out, i, activation_reference(v.activation, element(v.x, i)));
}

// ---- convert, affine_channels: rows at any stride -------------------------------------------------------------------

template <typename In, typename Out, typename Map>
void map_rows(Stream& stream, const TensorView& x, const TensorView& out, Map&& map) {
  const int64_t d = row_length(x);
  stream.team().parallel_for(x.size() / d, std::max<int64_t>(1, kGrain / d), [&](IndexRange range, int) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const In* from = x.data<In>() + row_offset(x, row);
      Out* to = out.data<Out>() + row_offset(out, row);
      simd::for_vectors(d, [&](int64_t i, auto lanes) {
        simd::store_at(to, i, map(simd::load_at(from, i, lanes), i, lanes), lanes);
      });
    }
  });
}

void convert_vector(Stream& stream, const Args& v) {
  with_types(v.x, v.out, [&](auto from, auto to) {
    using In = typename decltype(from)::type;
    using Out = typename decltype(to)::type;
    if (!v.x.contiguous() || !v.out.contiguous())
      return map_rows<In, Out>(stream, v.x, v.out, [](Floats y, int64_t, auto) { return y; });
    stream.team().parallel_for(v.x.size(), kGrain, [&](IndexRange range, int) {  // as one row, split anywhere
      const In* x = v.x.data<In>() + range.begin;
      Out* out = v.out.data<Out>() + range.begin;
      simd::for_vectors(range.size(),
                        [&](int64_t i, auto lanes) { simd::store_at(out, i, simd::load_at(x, i, lanes), lanes); });
    });
  });
}

void convert_scalar(Stream&, const Args& v) {
  const int64_t d = row_length(v.x);
  for (int64_t i = 0; i < v.x.size(); ++i)
    set_element(v.out, row_offset(v.out, i / d) + i % d, element(v.x, row_offset(v.x, i / d) + i % d));
}

void affine_vector(Stream& stream, const Args& v) {
  const float *scale = v.a.data<float>(), *offset = v.b.data<float>();
  with_types(v.x, v.out, [&](auto from, auto to) {
    map_rows<typename decltype(from)::type, typename decltype(to)::type>(
        stream, v.x, v.out, [&](Floats y, int64_t i, auto lanes) {
          return simd::fma(y, simd::load_at(scale, i, lanes), simd::load_at(offset, i, lanes));
        });
  });
}

void affine_scalar(Stream&, const Args& v) {
  const int64_t d = row_length(v.x);
  for (int64_t i = 0; i < v.x.size(); ++i) {
    const double x = element(v.x, row_offset(v.x, i / d) + i % d);
    const double scale = v.a.data<float>()[i % d], offset = v.b.data<float>()[i % d];
    set_element(v.out, row_offset(v.out, i / d) + i % d, x * scale + offset);
  }
}

// ---- checks ---------------------------------------------------------------------------------------------------------

void need_dtype(const char* op, const TensorView& view) {
  if (view.dtype() != DType::kF32 && view.dtype() != DType::kBF16)
    fail("{}: dtype {}, but F32 or BF16 is needed", op, dtype_name(view.dtype()));
}

void need_same_shape(const char* op, const TensorView& x, const TensorView& out) {
  if (!(x.shape() == out.shape()))
    fail("{}: {} and {} must have one shape", op, x.shape().to_string(), out.shape().to_string());
}

void need_contiguous(const char* op, const TensorView& view) {
  if (!view.contiguous()) fail("{}: {} must be contiguous", op, view.shape().to_string());
}

void need_rows(const char* op, const TensorView& view) {
  if (view.rank() > 0 && view.extent(-1) > 1 && view.stride(-1) != 1)
    fail("{}: the last axis of {} must be contiguous", op, view.shape().to_string());
}

}  // namespace

void gated_add(Stream& stream, const TensorView& x, const TensorView& a, const TensorView& gate, const TensorView& out,
               std::string_view implementation) {
  for (const TensorView* t : {&x, &a, &out}) {
    if (t->rank() != 3) fail("gated_add: {} must be [B, S, d]", t->shape().to_string());
    need_dtype("gated_add", *t);
    need_same_shape("gated_add", *t, out);
    need_rows("gated_add", *t);
  }
  if (gate) {
    need_rows("gated_add", gate);
    const bool fits = gate.rank() == 3 && gate.extent(0) == x.extent(0) && gate.extent(2) == x.extent(2) &&
                      (gate.extent(1) == 1 || gate.extent(1) == x.extent(1));
    if (!fits || gate.dtype() != DType::kF32)
      fail("gated_add: gate must be F32 [B, 1, d] or [B, S, d] for x {}, not {} {}", x.shape().to_string(),
           dtype_name(gate.dtype()), gate.shape().to_string());
  }
  run<gated_add_vector, gated_add_scalar>("gated_add", stream, {x, a, gate, out}, implementation);
}

void activate(Stream& stream, Activation activation, const TensorView& x, const TensorView& out,
              std::string_view implementation) {
  for (const TensorView* t : {&x, &out}) {
    need_dtype("activate", *t);
    need_contiguous("activate", *t);
  }
  need_same_shape("activate", x, out);
  run<activate_vector, activate_scalar>("activate", stream, {x, {}, {}, out, activation}, implementation);
}

void convert(Stream& stream, const TensorView& x, const TensorView& out, std::string_view implementation) {
  for (const TensorView* t : {&x, &out}) {
    need_dtype("convert", *t);
    need_rows("convert", *t);
  }
  need_same_shape("convert", x, out);
  run<convert_vector, convert_scalar>("convert", stream, {x, {}, {}, out}, implementation);
}

void affine_channels(Stream& stream, const TensorView& x, const TensorView& scale, const TensorView& offset,
                     const TensorView& out, std::string_view implementation) {
  for (const TensorView* t : {&x, &out}) {
    need_dtype("affine_channels", *t);
    need_rows("affine_channels", *t);
  }
  need_same_shape("affine_channels", x, out);
  for (const TensorView* t : {&scale, &offset}) {
    if (t->dtype() != DType::kF32 || !(t->shape() == Shape{row_length(x)}) || !t->contiguous())
      fail("affine_channels: scale and offset must be contiguous F32 [{}], not {} {}", row_length(x),
           dtype_name(t->dtype()), t->shape().to_string());
  }
  run<affine_vector, affine_scalar>("affine_channels", stream, {x, scale, offset, out}, implementation);
}

}  // namespace zoetrope::kernels
