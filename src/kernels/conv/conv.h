// Convolutions of the VAE, channels last: 2-D per frame and causal 3-D. oneDNN does the work; weights are brought into
// its layout once, when the object is made, and the object is then shared by ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

struct ConvProblem {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  std::array<int64_t, 3> kernel{1, 1, 1};  // t, h, w
  std::array<int64_t, 3> stride{1, 1, 1};
  // Zero padding before and after, per axis. Causal history is the caller's: it puts past frames in front of x.
  std::array<int64_t, 3> pad_before{0, 0, 0};
  std::array<int64_t, 3> pad_after{0, 0, 0};
  std::string implementation;
};

class Convolution {
 public:
  // weight [O, I, kt, kh, kw] or [O, I, kh, kw] (kt = 1), bias [O] or empty; F32. The views must live as long as the
  // object only where the implementation keeps the plain layout; callers keep checkpoint maps open anyway.
  Convolution(const ConvProblem& problem, const TensorView& weight, const TensorView& bias);
  ~Convolution();
  Convolution(Convolution&&) noexcept;

  const ConvProblem& problem() const;
  const char* implementation() const;
  Shape output_shape(const Shape& x) const;  // [T, H, W, C] → [T', H', W', O]

  // x [T, H, W, C], out [T', H', W', O], both contiguous F32. With `add`, out = conv(x) + add (same shape as out, may
  // be out). Safe to call from several ranks at once, each with its own stream.
  void run(Stream& stream, const TensorView& x, const TensorView& out, const TensorView& add = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::kernels
