// oneDNN's convolution with weights in its own layout and primitives kept per input shape. For conv.cpp only.
#pragma once

#include <memory>

#include "kernels/conv/conv.h"

namespace zoetrope::kernels {

class OnednnConvolution {
 public:
  OnednnConvolution(const ConvProblem& problem, const TensorView& weight, const TensorView& bias);
  ~OnednnConvolution();

  // x [T, H, W, C] and out [T', H', W', O] contiguous F32; add empty or of out's shape. Safe from several threads.
  void run(Stream& stream, const TensorView& x, const TensorView& out, const TensorView& add);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::kernels
