// Convolutions of the VAE on single frames, channels last: what one frame of output needs of one or several frames of
// input, summed over all taps in registers and finished in one go. Bias, residual, the norm and SiLU of the layer that
// reads the result, and the rounding to bf16 happen while a few rows are in cache, so a frame is written once. Frames
// stay where they are: a convolution over time names its past frames and copies none. Not for whole clips.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

// out(y, x, o) = bias(o) + Σ w(o, c, t, i, j)·in_t(origin₀ + y·stride + i, origin₁ + x·stride + j, c). There is no
// padding: an input that has a border carries it in memory.
struct FrameConvProblem {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t frames = 1;                   // taps over time, each on a frame of its own
  std::array<int64_t, 2> kernel{1, 1};  // rows, columns
  std::array<int64_t, 2> origin{0, 0};
  int64_t stride = 1;         // over rows and columns
  DType dtype = DType::kF32;  // of every activation: F32 or BF16; sums are float32
  std::string implementation;
};

// What becomes of the sums. Everything is [H, W, O] in the problem's dtype, any strides but a contiguous last axis;
// raw, normed or both must be there, and neither may lie in an input.
struct FrameConvOutput {
  TensorView add;     // optional
  TensorView raw;     // sums + bias + add, rounded once; may be add
  TensorView normed;  // raw / max(‖raw‖₂, 1e-12)·√O·gamma over channels, then SiLU if asked, rounded once
  TensorView gamma;   // [O] F32, with normed
  bool silu = false;
};

class FrameConvolution {
 public:
  // weight [O, I, frames, rows, columns], bias [O] or empty, F32, contiguous; both are copied into the layout of the
  // kernels. Where dtype is BF16 the caller has rounded them as the model wants; weights that bf16 holds exactly are
  // kept so, and where products are float32 a call widens them into the stream's scratch; where they are bf16, weights
  // that it does not hold (sums of taps) are rounded to it.
  FrameConvolution(const FrameConvProblem& problem, const TensorView& weight, const TensorView& bias);
  ~FrameConvolution();
  FrameConvolution(FrameConvolution&&) noexcept;

  const FrameConvProblem& problem() const;
  const char* implementation() const;
  size_t weight_bytes() const;

  // inputs: [h, w, C] each, oldest first, the last two axes contiguous; the first ones may be empty, where the clip had
  // not begun: their taps are left out. The result of a pixel does not depend on the other pixels of the call nor on
  // the number of threads, to the last bit. Safe to call from several ranks at once, each with its own stream.
  void run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::kernels
