// y = act(x·wᵀ + bias): the linear layer, weights as checkpoints store them. oneDNN does the work.
#pragma once

#include <string>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

enum class Activation : uint8_t { kNone, kSilu, kGeluTanh, kGeluErf };

struct Gemm {
  TensorView x;     // [M, K] F32 or BF16, last axis contiguous, rows at any stride
  TensorView w;     // [N, K] same dtype as x, contiguous rows
  TensorView bias;  // [N] F32 or BF16, optional
  Activation activation = Activation::kNone;
  TensorView out;  // [M, N] F32 or BF16, last axis contiguous, rows at any stride; accumulated in float32, rounded once
  std::string implementation;
};
void gemm(Stream& stream, const Gemm& args);

}  // namespace zoetrope::kernels
