// Products of few rows with weights as a checkpoint stores them: out = act(x·wᵀ + bias), and the gated pair of a
// feed-forward. Each weight is read once, straight from the map and ahead of its use, and widened in registers, so a
// prompt's few rows cost what reading the weights costs and many rows run at the speed of the float32 units. For
// weights used once a run: where the same weights multiply again and again, those packed beforehand are faster.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope::kernels {

// Weights need no alignment at all; their rows may stand apart, a part of the columns is a view like any other.
struct ThinProduct {
  TensorView w;       // [N, K] F32 or BF16, last axis contiguous
  TensorView gate;    // like w, or none: then out = gelu_tanh(x·gateᵀ) ⊙ (x·wᵀ)
  TensorView out;     // [M, N] F32 or BF16, last axis contiguous, rows at any stride; rounded once
  TensorView bias{};  // [N] F32 contiguous, or none; like the activation not with a gate
  Activation activation = Activation::kNone;  // of x·wᵀ + bias
};

struct ThinGemm {
  TensorView x;                           // [M, K] F32 or BF16, last axis contiguous, rows at any stride
  std::span<const ThinProduct> products;  // of this x: several are one pass, such as q, k and v
  // BF16: weights stored as F32 count as converted, each rounded to nearest even before it multiplies.
  DType weight_precision = DType::kF32;
  std::string_view implementation;
};

// Sums are float32, in pieces of at most 128 terms that are then added up; on matrix units in one
// sum through all terms.
void thin_gemm(Stream& stream, const ThinGemm& args);

// Scratch that a call takes from its stream, at most.
size_t thin_gemm_scratch_bytes(int64_t rows, int64_t k, bool gated, int threads);

}  // namespace zoetrope::kernels
