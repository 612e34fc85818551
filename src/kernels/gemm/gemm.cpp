#include "kernels/gemm/gemm.h"

#include <cstring>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/gemm/onednn_matmul.h"
#include "kernels/implementation.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

// Checkpoint maps promise no alignment, so what may come from one is read bytewise.
template <typename T>
float read(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return to_float(value);
}

float read_bias(const TensorView& bias, int64_t i) {
  if (!bias) return 0;
  return bias.dtype() == DType::kF32 ? read<float>(bias.raw(), i) : read<BFloat16>(bias.raw(), i);
}

void check(const Gemm& g) {
  if (g.x.rank() != 2 || g.w.rank() != 2 || g.out.rank() != 2) fail("gemm: x, w and out must have two axes");
  const int64_t m = g.x.extent(0), k = g.x.extent(1), n = g.w.extent(0);
  if (g.w.extent(1) != k || g.out.extent(0) != m || g.out.extent(1) != n)
    fail("gemm: shapes do not fit: x {}, w {}, out {}; they should be [M, K], [N, K], [M, N]", g.x.shape().to_string(),
         g.w.shape().to_string(), g.out.shape().to_string());
  if (k == 0) fail("gemm: x {} has no columns", g.x.shape().to_string());
  if (g.w.dtype() != g.x.dtype())
    fail("gemm: x is {} and w is {}; both must have one dtype", dtype_name(g.x.dtype()), dtype_name(g.w.dtype()));
  for (const TensorView* t : {&g.x, &g.w, &g.out}) {
    if (t->dtype() != DType::kF32 && t->dtype() != DType::kBF16)
      fail("gemm: dtype {}, but F32 or BF16 is needed", dtype_name(t->dtype()));
    if (t->extent(1) != 1 && t->stride(1) != 1) fail("gemm: the last axis of x, w and out must be contiguous");
    if (t->extent(0) > 1 && t->stride(0) < t->extent(1)) fail("gemm: rows of x, w and out must not overlap");
  }
  if (g.bias) {
    if (g.bias.rank() != 1 || g.bias.extent(0) != n || !g.bias.contiguous())
      fail("gemm: bias is {}, but [{}], contiguous, is needed", g.bias.shape().to_string(), n);
    if (g.bias.dtype() != DType::kF32 && g.bias.dtype() != DType::kBF16)
      fail("gemm: bias has dtype {}, but F32 or BF16 is needed", dtype_name(g.bias.dtype()));
  }
}

// oneDNN wants a leading dimension of at least the row's length also where there is one row only.
int64_t row_stride(const TensorView& t) { return t.extent(0) > 1 ? t.stride(0) : t.extent(1); }

const float* float_bias(Stream& stream, const TensorView& bias) {
  if (!bias) return nullptr;
  if (bias.dtype() == DType::kF32) return bias.data<float>();
  auto* converted = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(bias.size()) * sizeof(float)));
  for (int64_t i = 0; i < bias.size(); ++i) converted[i] = read_bias(bias, i);
  return converted;
}

// out = act(sums), row by row; sums may be out itself.
template <typename Out>
void activate_rows(Stream& stream, Activation activation, const float* sums, int64_t sums_stride, Out* out,
                   int64_t out_stride, int64_t rows, int64_t columns) {
  with_activation(activation, [&](auto tag) {
    stream.team().parallel_for(rows, std::max<int64_t>(1, 16384 / columns), [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const float* from = sums + row * sums_stride;
        Out* to = out + row * out_stride;
        simd::for_vectors(columns, [&](int64_t i, auto lanes) {
          simd::store_at(to, i, activation_vector<decltype(tag)::value>(simd::load_at(from, i, lanes)), lanes);
        });
      }
    });
  });
}

MatmulCall matmul_call(const Gemm& g) {
  MatmulCall call;
  call.m = g.x.extent(0);
  call.k = g.x.extent(1);
  call.n = g.w.extent(0);
  call.x = g.x.raw();
  call.x_stride = row_stride(g.x);
  call.w = g.w.raw();
  call.w_stride = row_stride(g.w);
  call.out = g.out.raw();
  call.out_stride = row_stride(g.out);
  call.in_dtype = g.x.dtype();
  call.out_dtype = g.out.dtype();
  return call;
}

void widen(Stream& stream, const BFloat16* from, int64_t from_stride, float* to, int64_t rows, int64_t columns) {
  stream.team().parallel_for(rows, std::max<int64_t>(1, 16384 / columns), [&](IndexRange range, int) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      simd::for_vectors(columns, [&](int64_t i, auto lanes) {
        simd::store_at(to + row * columns, i, simd::load_at(from + row * from_stride, i, lanes), lanes);
      });
    }
  });
}

enum class Operands : uint8_t { kAsTheyAre, kWidened };

// Sums in float32 scratch, panel by panel, rounded to out with the activation: for bf16 operands where the CPU has no
// units for them (widening them is exact), for float32 operands with a bf16 result, which oneDNN does not do, and for
// activations that it does not do as we want them. The panel of w is what stays in cache; the rows of x are bounded so
// that scratch is, too.
void run_panels(Stream& stream, const Gemm& g, Operands operands) {
  constexpr int64_t kRows = 1024, kColumns = 512;
  const MatmulCall whole = matmul_call(g);
  const bool widened = operands == Operands::kWidened;
  const auto element = static_cast<int64_t>(dtype_size(g.x.dtype()));
  const Arena::Scope scope(stream.scratch());
  const float* bias = float_bias(stream, g.bias);
  const auto floats = [&](int64_t count) {
    return static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(count) * sizeof(float)));
  };
  const int64_t most_rows = std::min(kRows, whole.m), most_columns = std::min(kColumns, whole.n);
  float* x = widened ? floats(most_rows * whole.k) : nullptr;
  float* w = widened ? floats(most_columns * whole.k) : nullptr;
  float* sums = floats(most_rows * most_columns);
  for (int64_t row = 0; row < whole.m; row += kRows) {
    MatmulCall panel;
    panel.m = std::min(kRows, whole.m - row);
    panel.k = whole.k;
    if (widened) widen(stream, g.x.data<BFloat16>() + row * whole.x_stride, whole.x_stride, x, panel.m, panel.k);
    panel.in_dtype = widened ? DType::kF32 : g.x.dtype();
    panel.x =
        widened ? static_cast<const void*>(x) : static_cast<const char*>(g.x.raw()) + row * whole.x_stride * element;
    panel.x_stride = widened ? whole.k : whole.x_stride;
    for (int64_t column = 0; column < whole.n; column += kColumns) {
      panel.n = std::min(kColumns, whole.n - column);
      if (widened) widen(stream, g.w.data<BFloat16>() + column * whole.w_stride, whole.w_stride, w, panel.n, panel.k);
      panel.w = widened ? static_cast<const void*>(w)
                        : static_cast<const char*>(g.w.raw()) + column * whole.w_stride * element;
      panel.w_stride = widened ? whole.k : whole.w_stride;
      panel.bias = bias == nullptr ? nullptr : bias + column;
      panel.out = sums;
      panel.out_stride = panel.n;
      onednn_matmul(stream, panel);
      with_compute_type(g.out.dtype(), "gemm's out", [&](auto type) {
        using Out = typename decltype(type)::type;
        activate_rows(stream, g.activation, sums, panel.n, g.out.data<Out>() + row * whole.out_stride + column,
                      whole.out_stride, panel.m, panel.n);
      });
    }
  }
}

void run_widened(Stream& stream, const Gemm& g) { run_panels(stream, g, Operands::kWidened); }

void run_onednn(Stream& stream, const Gemm& g) {
  // oneDNN's SiLU of −inf is NaN.
  if ((g.x.dtype() == DType::kF32 && g.out.dtype() == DType::kBF16) || g.activation == Activation::kSilu)
    return run_panels(stream, g, Operands::kAsTheyAre);
  const Arena::Scope scope(stream.scratch());
  MatmulCall call = matmul_call(g);
  call.bias = float_bias(stream, g.bias);
  // oneDNN's GELU-tanh is as good as ours (relative L2 5e-8 against float64, a pass over out saved); its GELU-erf
  // has 1.1e-7 where ours has 4.6e-8, which shows in float32 but not in bf16.
  const bool own_pass = g.activation == Activation::kGeluErf && g.out.dtype() == DType::kF32;
  if (!own_pass) call.fused = g.activation;
  onednn_matmul(stream, call);
  if (own_pass) {
    float* out = g.out.data<float>();
    activate_rows(stream, g.activation, out, call.out_stride, out, call.out_stride, call.m, call.n);
  }
}

template <typename In, typename Out>
void multiply_reference(const Gemm& g) {
  const char* x = static_cast<const char*>(g.x.raw());
  const char* w = static_cast<const char*>(g.w.raw());
  constexpr auto kBytes = static_cast<int64_t>(sizeof(In));
  for (int64_t m = 0; m < g.out.extent(0); ++m) {
    for (int64_t n = 0; n < g.out.extent(1); ++n) {
      double sum = read_bias(g.bias, n);
      for (int64_t k = 0; k < g.x.extent(1); ++k) {
        sum += static_cast<double>(read<In>(x + m * g.x.stride(0) * kBytes, k)) *
               static_cast<double>(read<In>(w + n * g.w.stride(0) * kBytes, k));
      }
      g.out.data<Out>()[m * g.out.stride(0) + n] =
          from_float<Out>(static_cast<float>(activation_reference(g.activation, sum)));
    }
  }
}

void run_reference(Stream&, const Gemm& g) {
  with_compute_type(g.x.dtype(), "gemm's x", [&](auto in) {
    with_compute_type(g.out.dtype(), "gemm's out", [&](auto out) {
      multiply_reference<typename decltype(in)::type, typename decltype(out)::type>(g);
    });
  });
}

Refusal refuse_onednn_bf16(const Gemm& g) {
  if (g.x.dtype() != DType::kBF16) return "x is F32";
  if (!onednn_has_bf16()) return "oneDNN multiplies BF16 only with AVX-512";
  return {};
}
Refusal refuse_onednn(const Gemm& g) {
  if (g.x.dtype() != DType::kBF16) return {};
  if (const Refusal refusal = refuse_onednn_bf16(g)) return refusal;
  if (!onednn_bf16_is_fast()) return "BF16 through float32 is faster here: no AMX, and vdpbf16ps no faster than FMA";
  return {};
}
Refusal refuse_via_float(const Gemm& g) {
  if (g.x.dtype() != DType::kBF16) return "x is F32 already, there is nothing to convert";
  return {};
}
Refusal refuse_nothing(const Gemm&) { return {}; }

// One core of a Xeon of 2023 without AMX, 1024×1536×1536, GFLOP/s: F32 140; BF16 125 through float32, 81 in oneDNN's
// own bf16 (whose weights brought into its layout beforehand: 84, so packing them is not what it lacks).
constexpr Implementation<Gemm, void (*)(Stream&, const Gemm&)> kImplementations[] = {
    {"onednn", refuse_onednn, run_onednn},
    {"f32_via_convert", refuse_via_float, run_widened},
    {"onednn_bf16", refuse_onednn_bf16, run_onednn},
    {"reference", refuse_nothing, run_reference},
};

}  // namespace

void gemm(Stream& stream, const Gemm& args) {
  check(args);
  const auto& implementation = choose("gemm", kImplementations, args, args.implementation);
  if (args.out.size() == 0) return;
  implementation.function(stream, args);
}

}  // namespace zoetrope::kernels
