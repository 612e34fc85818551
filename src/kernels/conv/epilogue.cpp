#include "kernels/conv/epilogue.h"

#include <algorithm>
#include <cmath>

#include "base/index_range.h"

namespace zoetrope::kernels {

ConvEpilogue::ConvEpilogue(const FrameConvProblem& problem, const DirectKernels& kernels, const TensorView& bias)
    : kernels_(kernels),
      dtype_(problem.dtype),
      channels_(problem.out_channels),
      columns_(round_up(problem.out_channels, kernels.lanes)),
      bias_(static_cast<size_t>(columns_), 0.0f),
      root_(std::sqrt(static_cast<float>(problem.out_channels))) {
  if (bias) std::copy_n(bias.data<float>(), channels_, bias_.begin());
}

const float* ConvEpilogue::gamma(Stream& stream, const FrameConvOutput& out) const {
  if (!out.normed) return nullptr;
  auto* gamma = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(columns_) * sizeof(float)));
  std::fill(std::copy_n(out.gamma.data<float>(), channels_, gamma), gamma + columns_, 0.0f);
  return gamma;
}

void ConvEpilogue::finish(const FrameConvOutput& out, const float* gamma, int64_t row, int64_t column, int64_t pixels,
                          float* sums) const {
  const auto element = static_cast<int64_t>(dtype_size(dtype_));
  const auto place = [&](const TensorView& t, int64_t& stride) -> void* {
    if (!t) return nullptr;
    stride = t.stride(1);
    return t.data<std::byte>() + (row * t.stride(0) + column * t.stride(1)) * element;
  };
  FinishCall call{};
  call.acc = sums;
  call.acc_stride = columns_;
  call.pixels = pixels;
  call.channels = channels_;
  call.bias = bias_.data();
  call.gamma = gamma;
  call.root = root_;
  call.silu = out.silu;
  call.add = place(out.add, call.add_stride);
  call.raw = place(out.raw, call.raw_stride);
  call.normed = place(out.normed, call.normed_stride);
  if (dtype_ == DType::kBF16) kernels_.finish_bf16(call);
  else kernels_.finish_f32(call);
}

}  // namespace zoetrope::kernels
