#include "kernels/conv/frame_conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/conv/direct_convolution.h"
#include "kernels/conv/winograd_convolution.h"
#include "kernels/cpu_features.h"
#include "kernels/implementation.h"
#include "tensor/dispatch.h"
#include "tensor/element.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

// Asked for by name, where there may be a kernel for it.
bool asks_for_winograd(const FrameConvProblem& p) {
  return p.algorithm == ConvAlgorithm::kWinograd && p.kernel == std::array<int64_t, 2>{3, 3} && p.stride == 1;
}

Refusal refuse_amx_bf16(const FrameConvProblem& p) {
  if (!cpu_features().amx_bf16) return "needs AMX with BF16";
  if (asks_for_winograd(p)) return "does not compute Winograd's transforms";
  return DirectConvolution::refusal(p, direct_amx());
}
// If forced, it runs wherever it can.
Refusal refuse_avx512_bf16(const FrameConvProblem& p) {
  if (!cpu_features().avx512_bf16) return "needs AVX-512-BF16";
  if (p.implementation.empty() && !cpu_features().fast_bf16_dots) return "multiplying bf16 is no faster here";
  return DirectConvolution::refusal(p, direct_avx512_bf16());
}
Refusal refuse_avx512(const FrameConvProblem& p) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  return DirectConvolution::refusal(p, direct_avx512());
}
Refusal refuse_avx2(const FrameConvProblem& p) {
  if (!cpu_features().avx2) return "needs AVX2 and FMA";
  return DirectConvolution::refusal(p, direct_avx2());
}

// oneDNN 2.6 is not in the list. In float32 its 3×3 kernels are as fast (90 to 96 % of the peak), but they take one
// dense 3-D window of frames, or a pass over the sums for each frame, and the epilogue of this op would be one more
// pass. In bf16 on AMX its layout of the weights depends on the size of the picture, and it uses its reference where it
// is given another one.
constexpr Implementation<FrameConvProblem, const DirectKernels& (*)()> kImplementations[] = {
    {"amx_bf16", refuse_amx_bf16, direct_amx}, {"avx512_bf16", refuse_avx512_bf16, direct_avx512_bf16},
    {"avx512", refuse_avx512, direct_avx512},  {"avx2", refuse_avx2, direct_avx2},
    {"reference", nullptr, nullptr},
};

// Channels of inputs and of outputs with which Winograd is used unless something else is asked for: 1.7 to 2.1 times as
// fast. With 16 or 32 of them it still is 1.3 to 1.6 times as fast; few convolutions have so few, and those are not
// worth larger errors.
constexpr int64_t kWinogradChannels = 64;

bool by_winograd(const FrameConvProblem& p, const DirectKernels& kernels) {
  if (p.algorithm == ConvAlgorithm::kDirect || WinogradConvolution::refusal(p, kernels)) return false;
  return p.algorithm == ConvAlgorithm::kWinograd || std::min(p.in_channels, p.out_channels) >= kWinogradChannels;
}

// Of an output channel.
int64_t taps_of(const FrameConvProblem& p) { return p.in_channels * p.frames * p.kernel[0] * p.kernel[1]; }

void check(const FrameConvProblem& p, const TensorView& bias) {
  if (p.in_channels < 1 || p.out_channels < 1 || p.frames < 1 || p.kernel[0] < 1 || p.kernel[1] < 1 || p.stride < 1 ||
      p.origin[0] < 0 || p.origin[1] < 0)
    fail("frame convolution: channels, frames, kernel and stride must be at least 1 and the origin at least 0");
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16)
    fail("frame convolution: dtype {}, but F32 or BF16 is needed", dtype_name(p.dtype));
  if (bias && (!(bias.shape() == Shape{p.out_channels}) || bias.dtype() != DType::kF32 || !bias.contiguous()))
    fail("frame convolution: bias {} {} must be contiguous F32 [{}]", dtype_name(bias.dtype()),
         bias.shape().to_string(), p.out_channels);
}

void check_weight(const FrameConvProblem& p, const TensorView& weight, int64_t outs) {
  const Shape expected{outs, p.in_channels, p.frames, p.kernel[0], p.kernel[1]};
  if (!(weight.shape() == expected) || weight.dtype() != DType::kF32 || !weight.contiguous())
    fail("frame convolution: weight is {} {}, but contiguous F32 {} is needed", dtype_name(weight.dtype()),
         weight.shape().to_string(), expected.to_string());
}

}  // namespace

struct FrameConvolution::Impl {
  FrameConvProblem problem;
  const Implementation<FrameConvProblem, const DirectKernels& (*)()>* implementation = nullptr;
  std::unique_ptr<DirectConvolution> direct;
  std::unique_ptr<WinogradConvolution> winograd;
  const std::byte* packed = nullptr;  // weights; of the reference float32 as given
  Tensor own;                         // that they lie in, where they are this object's
  std::vector<float> bias;            // of the reference

  void check_call(std::span<const TensorView> inputs, const FrameConvOutput& out) const;
  template <typename T>
  void reference(std::span<const TensorView> inputs, const FrameConvOutput& out) const;
  double sum_at(std::span<const TensorView> inputs, int64_t y, int64_t x, int64_t o) const;
};

void FrameConvolution::Impl::check_call(std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  const FrameConvProblem& p = problem;
  const TensorView& any = out.raw ? out.raw : out.normed;
  if (!any || any.rank() != 3 || any.extent(2) != p.out_channels)
    fail("frame convolution: the output must be [H, W, {}], not {}", p.out_channels, any.shape().to_string());
  for (const TensorView* t : {&out.add, &out.raw, &out.normed}) {
    if (!*t) continue;
    if (!(t->shape() == any.shape()) || t->dtype() != p.dtype || (p.out_channels > 1 && t->stride(2) != 1))
      fail("frame convolution: outputs must be {} {} with a contiguous last axis, not {} {}", dtype_name(p.dtype),
           any.shape().to_string(), dtype_name(t->dtype()), t->shape().to_string());
  }
  if (out.normed &&
      (!(out.gamma.shape() == Shape{p.out_channels}) || out.gamma.dtype() != DType::kF32 || !out.gamma.contiguous()))
    fail("frame convolution: gamma must be contiguous F32 [{}]", p.out_channels);
  const auto frames = static_cast<size_t>(p.frames);
  if (inputs.size() != frames || !inputs.back())
    fail("frame convolution: {} input frames are needed, the last of them not empty; got {}", p.frames, inputs.size());
  const int64_t rows = p.origin[0] + (any.extent(0) - 1) * p.stride + p.kernel[0];
  const int64_t columns = p.origin[1] + (any.extent(1) - 1) * p.stride + p.kernel[1];
  for (size_t i = 0; i < frames; ++i) {
    const TensorView& x = inputs[i];
    if (!x && (i == 0 || !inputs[i - 1])) continue;
    if (!x || x.rank() != 3 || x.dtype() != p.dtype || x.extent(0) < rows || x.extent(1) < columns ||
        x.extent(2) != p.in_channels || (p.in_channels > 1 && x.stride(2) != 1) || x.stride(1) != p.in_channels)
      fail("frame convolution: input {} must be {} [≥ {}, ≥ {}, {}] with dense rows, not {} {}", i, dtype_name(p.dtype),
           rows, columns, p.in_channels, dtype_name(x.dtype()), x.shape().to_string());
  }
}

double FrameConvolution::Impl::sum_at(std::span<const TensorView> inputs, int64_t y, int64_t x, int64_t o) const {
  const FrameConvProblem& p = problem;
  const auto* weight = reinterpret_cast<const float*>(packed);
  double sum = 0;
  for (int64_t t = 0; t < p.frames; ++t) {
    const TensorView& in = inputs[static_cast<size_t>(t)];
    if (!in) continue;
    for (int64_t i = 0; i < p.kernel[0]; ++i) {
      for (int64_t j = 0; j < p.kernel[1]; ++j) {
        const int64_t at =
            (p.origin[0] + y * p.stride + i) * in.stride(0) + (p.origin[1] + x * p.stride + j) * in.stride(1);
        for (int64_t c = 0; c < p.in_channels; ++c) {
          const int64_t tap = (((o * p.in_channels + c) * p.frames + t) * p.kernel[0] + i) * p.kernel[1] + j;
          sum += static_cast<double>(weight[tap]) * element(in, at + c);
        }
      }
    }
  }
  return sum;
}

// The definition.
template <typename T>
void FrameConvolution::Impl::reference(std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  const TensorView& any = out.raw ? out.raw : out.normed;
  const int64_t channels = problem.out_channels;
  const auto at = [](const TensorView& t, int64_t y, int64_t x) {
    return t.data<T>() + y * t.stride(0) + x * t.stride(1);
  };
  std::vector<double> row(static_cast<size_t>(channels));
  for (int64_t y = 0; y < any.extent(0); ++y) {
    for (int64_t x = 0; x < any.extent(1); ++x) {
      double squares = 0;
      for (int64_t o = 0; o < channels; ++o) {
        double sum = sum_at(inputs, y, x, o) + (bias.empty() ? 0.0f : bias[static_cast<size_t>(o)]);
        if (out.add) sum += to_float(at(out.add, y, x)[o]);
        const T rounded = from_float<T>(static_cast<float>(sum));
        if (out.raw) at(out.raw, y, x)[o] = rounded;
        row[static_cast<size_t>(o)] = to_float(rounded);
        squares += row[static_cast<size_t>(o)] * row[static_cast<size_t>(o)];
      }
      if (!out.normed) continue;
      const double scale = std::sqrt(static_cast<double>(channels)) / std::max(std::sqrt(squares), 1e-12);
      for (int64_t o = 0; o < channels; ++o) {
        double value = row[static_cast<size_t>(o)] * scale * out.gamma.data<float>()[o];
        if (out.silu) value = silu_reference(value);
        at(out.normed, y, x)[o] = from_float<T>(static_cast<float>(value));
      }
    }
  }
}

FrameConvolution::FrameConvolution(const FrameConvProblem& problem, const TensorView& bias)
    : impl_(std::make_unique<Impl>()) {
  check(problem, bias);
  impl_->problem = problem;
  impl_->implementation = &choose("frame convolution", kImplementations, problem, problem.implementation);
  if (const auto kernels = impl_->implementation->function) {
    if (by_winograd(problem, kernels()))
      impl_->winograd = std::make_unique<WinogradConvolution>(problem, kernels(), bias);
    else impl_->direct = std::make_unique<DirectConvolution>(problem, kernels(), bias);
    return;
  }
  if (bias) impl_->bias.assign(bias.data<float>(), bias.data<float>() + bias.size());
}

FrameConvolution::FrameConvolution(const FrameConvProblem& problem, const TensorView& weight, const TensorView& bias)
    : FrameConvolution(problem, bias) {
  check_weight(problem, weight, problem.out_channels);
  impl_->own = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(weight_bytes())});
  pack(weight, 0, impl_->own.data<std::byte>());
  use(impl_->own.data<std::byte>());
}

ConvAlgorithm algorithm_of(const FrameConvProblem& problem) {
  const auto kernels = choose("frame convolution", kImplementations, problem, problem.implementation).function;
  return kernels && by_winograd(problem, kernels()) ? ConvAlgorithm::kWinograd : ConvAlgorithm::kDirect;
}

int64_t winograd_weight_bytes(const FrameConvProblem& p) {
  return WinogradConvolution::weight_bytes(
      p, choose("frame convolution", kImplementations, p, p.implementation).function());
}

std::string winograd_refusal() { return cpu_features().avx2 ? "" : "it needs AVX2 and FMA"; }

FrameConvolution::~FrameConvolution() = default;
FrameConvolution::FrameConvolution(FrameConvolution&&) noexcept = default;

const FrameConvProblem& FrameConvolution::problem() const { return impl_->problem; }
const char* FrameConvolution::implementation() const { return impl_->implementation->name; }
ConvAlgorithm FrameConvolution::algorithm() const {
  return impl_->winograd ? ConvAlgorithm::kWinograd : ConvAlgorithm::kDirect;
}
size_t FrameConvolution::weight_bytes() const {
  if (impl_->winograd) return impl_->winograd->weight_bytes();
  if (impl_->direct) return impl_->direct->weight_bytes();
  return static_cast<size_t>(problem().out_channels * taps_of(problem())) * sizeof(float);
}
int64_t FrameConvolution::weight_step() const {
  if (impl_->winograd) return impl_->winograd->weight_step();
  return impl_->direct ? impl_->direct->weight_step() : 1;
}

void FrameConvolution::pack(const TensorView& weight, int64_t first, std::byte* packed) const {
  check_weight(problem(), weight, weight.extent(0));
  const int64_t end = first + weight.extent(0);
  ZT_CHECK(first % weight_step() == 0 && end <= problem().out_channels &&
           (end % weight_step() == 0 || end == problem().out_channels));
  if (problem().bf16_weights) {
    const auto is_exact = [](float x) { return to_float(to_bfloat16(x)) == x || std::isnan(x); };
    ZT_CHECK(std::all_of(weight.data<float>(), weight.data<float>() + weight.size(), is_exact));
  }
  if (impl_->winograd) return impl_->winograd->pack(weight, first, packed);
  if (impl_->direct) return impl_->direct->pack(weight, first, packed);
  std::copy_n(weight.data<float>(), weight.size(), reinterpret_cast<float*>(packed) + first * taps_of(problem()));
}

void FrameConvolution::use(const std::byte* packed) {
  impl_->packed = packed;
  if (impl_->winograd) impl_->winograd->use(packed);
  if (impl_->direct) impl_->direct->use(packed);
}

void FrameConvolution::run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  ZT_CHECK(impl_->packed != nullptr, "use() comes before run()");
  impl_->check_call(inputs, out);
  if ((out.raw ? out.raw : out.normed).size() == 0) return;
  if (impl_->winograd) return impl_->winograd->run(stream, inputs, out);
  if (impl_->direct) return impl_->direct->run(stream, inputs, out);
  with_compute_type(impl_->problem.dtype, "frame convolution",
                    [&](auto tag) { impl_->reference<typename decltype(tag)::type>(inputs, out); });
}

}  // namespace zoetrope::kernels
