#include "kernels/conv/conv.h"

#include "base/error.h"
#include "kernels/conv/onednn_convolution.h"
#include "kernels/implementation.h"

namespace zoetrope::kernels {
namespace {

enum class Backend : uint8_t { kOnednn, kReference };

Refusal refuse_nothing(const ConvProblem&) { return {}; }

constexpr Implementation<ConvProblem, Backend> kImplementations[] = {
    {"onednn", refuse_nothing, Backend::kOnednn},
    {"reference", refuse_nothing, Backend::kReference},
};

void check(const ConvProblem& p, const TensorView& weight, const TensorView& bias) {
  for (size_t axis = 0; axis < 3; ++axis) {
    if (p.kernel[axis] < 1 || p.stride[axis] < 1 || p.pad_before[axis] < 0 || p.pad_after[axis] < 0)
      fail("convolution: kernel and stride must be at least 1 and padding at least 0 on every axis");
  }
  const Shape full{p.out_channels, p.in_channels, p.kernel[0], p.kernel[1], p.kernel[2]};
  const Shape flat{p.out_channels, p.in_channels, p.kernel[1], p.kernel[2]};
  if (!(weight.shape() == full) && !(p.kernel[0] == 1 && weight.shape() == flat))
    fail("convolution: weight is {}, but {} is needed", weight.shape().to_string(), full.to_string());
  if (weight.dtype() != DType::kF32 || !weight.contiguous() || weight.empty())
    fail("convolution: weight {} {} must be contiguous F32", dtype_name(weight.dtype()), weight.shape().to_string());
  if (bias && (!(bias.shape() == Shape{p.out_channels}) || bias.dtype() != DType::kF32 || !bias.contiguous()))
    fail("convolution: bias {} {} must be contiguous F32 [{}]", dtype_name(bias.dtype()), bias.shape().to_string(),
         p.out_channels);
}

}  // namespace

struct Convolution::Impl {
  ConvProblem problem;
  const Implementation<ConvProblem, Backend>* implementation;
  std::unique_ptr<OnednnConvolution> onednn;
  TensorView weight, bias;  // of the reference, which keeps the plain layout
};

namespace {

// The definition: out(t, y, x, o) = bias(o) + Σ w(o, c, i, j, k)·in(t·st + i − pt, y·sh + j − ph, x·sw + k − pw, c),
// zero outside.
void convolve_reference(const ConvProblem& p, const TensorView& weight, const TensorView& bias, const TensorView& x,
                        const TensorView& out, const TensorView& add) {
  const float* in = x.data<float>();
  const float* w = weight.data<float>();
  const int64_t frames = x.extent(0), height = x.extent(1), width = x.extent(2), channels = x.extent(3);
  for (int64_t t = 0; t < out.extent(0); ++t)
    for (int64_t y = 0; y < out.extent(1); ++y)
      for (int64_t z = 0; z < out.extent(2); ++z)
        for (int64_t o = 0; o < out.extent(3); ++o) {
          double sum = bias ? bias.data<float>()[o] : 0.0f;
          for (int64_t i = 0; i < p.kernel[0]; ++i)
            for (int64_t j = 0; j < p.kernel[1]; ++j)
              for (int64_t k = 0; k < p.kernel[2]; ++k) {
                const int64_t ti = t * p.stride[0] + i - p.pad_before[0];
                const int64_t yj = y * p.stride[1] + j - p.pad_before[1];
                const int64_t zk = z * p.stride[2] + k - p.pad_before[2];
                if (ti < 0 || ti >= frames || yj < 0 || yj >= height || zk < 0 || zk >= width) continue;
                for (int64_t c = 0; c < channels; ++c) {
                  const int64_t tap = (((o * channels + c) * p.kernel[0] + i) * p.kernel[1] + j) * p.kernel[2] + k;
                  sum += static_cast<double>(w[tap]) * in[((ti * height + yj) * width + zk) * channels + c];
                }
              }
          const int64_t at = ((t * out.extent(1) + y) * out.extent(2) + z) * out.extent(3) + o;
          out.data<float>()[at] = static_cast<float>(sum + (add ? add.data<float>()[at] : 0.0f));
        }
}

}  // namespace

Convolution::Convolution(const ConvProblem& problem, const TensorView& weight, const TensorView& bias)
    : impl_(std::make_unique<Impl>()) {
  check(problem, weight, bias);
  impl_->problem = problem;
  impl_->implementation = &choose("convolution", kImplementations, problem, problem.implementation);
  if (impl_->implementation->function == Backend::kOnednn)
    impl_->onednn = std::make_unique<OnednnConvolution>(problem, weight, bias);
  else impl_->weight = weight, impl_->bias = bias;
}

Convolution::~Convolution() = default;
Convolution::Convolution(Convolution&&) noexcept = default;

const ConvProblem& Convolution::problem() const { return impl_->problem; }
const char* Convolution::implementation() const { return impl_->implementation->name; }

Shape Convolution::output_shape(const Shape& x) const {
  const ConvProblem& p = impl_->problem;
  if (x.rank() != 4 || x[3] != p.in_channels)
    fail("convolution: x is {}, but [T, H, W, {}] is needed", x.to_string(), p.in_channels);
  Shape out = x;
  out[3] = p.out_channels;
  for (int axis = 0; axis < 3; ++axis) {
    const auto a = static_cast<size_t>(axis);
    const int64_t room = x[axis] + p.pad_before[a] + p.pad_after[a] - p.kernel[a];
    if (room < 0)
      fail("convolution: axis {} of x {} with padding {} + {} is shorter than the kernel, {}", axis, x.to_string(),
           p.pad_before[a], p.pad_after[a], p.kernel[a]);
    out[axis] = room / p.stride[a] + 1;
  }
  return out;
}

void Convolution::run(Stream& stream, const TensorView& x, const TensorView& out, const TensorView& add) const {
  const Shape expected = output_shape(x.shape());
  if (!(out.shape() == expected))
    fail("convolution: out is {}, but {} is needed", out.shape().to_string(), expected.to_string());
  if (add && !(add.shape() == expected))
    fail("convolution: add is {}, but {} is needed", add.shape().to_string(), expected.to_string());
  for (const TensorView* t : {&x, &out, &add}) {
    if (*t && (t->dtype() != DType::kF32 || !t->contiguous()))
      fail("convolution: {} {} must be contiguous F32", dtype_name(t->dtype()), t->shape().to_string());
  }
  if (out.size() == 0) return;
  if (impl_->onednn) impl_->onednn->run(stream, x, out, add);
  else convolve_reference(impl_->problem, impl_->weight, impl_->bias, x, out, add);
}

}  // namespace zoetrope::kernels
