// A linear layer of the transformer as a call of the GEMM. Private to this folder.
#pragma once

#include "kernels/gemm/gemm.h"
#include "models/wan/transformer/weights.h"

namespace zoetrope::wan {

// out [M, N] = act(x [M, K]·weightᵀ + bias); nothing where M = 0 (a rank without tokens).
inline void linear(Stream& stream, const TensorView& x, const LinearWeights& layer, const TensorView& out,
                   kernels::Activation activation = kernels::Activation::kNone) {
  if (x.extent(0) == 0) return;
  kernels::gemm(
      stream,
      {.x = x, .w = layer.weight, .bias = layer.bias, .activation = activation, .out = out, .implementation = {}});
}

}  // namespace zoetrope::wan
