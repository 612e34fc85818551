// 3×3 convolutions of bf16 frames by oneDNN: one 2-D convolution for each frame over time, summed in float32, band by
// band of rows; what follows is done as in the direct convolution. For frame_conv.cpp only.
//
// Runs where it is asked for by name. On matrix units (AMX) it was to be the default, but there oneDNN 2.6 wants
// another layout of the weights for other sizes of a picture, and with the one it was given it convolves with its
// reference: a run of 30 seconds did not end in 300. A copy of the weights for each layout would mend that.
#pragma once

#include <memory>
#include <string>

#include "kernels/conv/frame_conv.h"

namespace zoetrope::kernels {

class OnednnFrames {
 public:
  // Why it cannot do a problem; empty when it can.
  static std::string refusal(const FrameConvProblem& problem);

  OnednnFrames(const FrameConvProblem& problem, const TensorView& weight, const TensorView& bias);
  ~OnednnFrames();
  void run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const;
  size_t weight_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::kernels
