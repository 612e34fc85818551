// What frame convolutions do with sums, whichever way they were added up: bias, residual, norm and SiLU of the next
// layer, rounding (direct_finish.h). For direct_convolution.cpp and winograd_convolution.cpp only.
#pragma once

#include <vector>

#include "kernels/conv/direct.h"
#include "kernels/conv/frame_conv.h"

namespace zoetrope::kernels {

class ConvEpilogue {
 public:
  ConvEpilogue(const FrameConvProblem& problem, const DirectKernels& kernels, const TensorView& bias);
  int64_t columns() const { return columns_; }  // output channels rounded up to vectors
  // Padded with zeros, in the stream's scratch; nullptr without a norm.
  const float* gamma(Stream& stream, const FrameConvOutput& out) const;
  // Finishes pixels of one row from their sums [pixels][columns()], which it overwrites.
  void finish(const FrameConvOutput& out, const float* gamma, int64_t row, int64_t column, int64_t pixels,
              float* sums) const;

 private:
  const DirectKernels& kernels_;
  DType dtype_;
  int64_t channels_, columns_;
  std::vector<float> bias_;  // padded with zeros
  float root_;               // √channels
};

}  // namespace zoetrope::kernels
