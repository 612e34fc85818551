// Matrix multiplication of few rows with weights as a checkpoint stores them: out = act(x·wᵀ + bias), and the gated
// pair of a feed-forward. Each weight is read once, directly from the mapped file and prefetched, and widened in
// registers, so a prompt's few rows cost what reading the weights costs and many rows run at the speed of float32
// arithmetic. For weights used once per run: where the same weights are used again and again, packed ones are faster
// (packed.h).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope::kernels {

// Weights need no alignment; their rows may have any stride, so a range of columns may be a view of a larger matrix.
struct ThinProduct {
  TensorView w;       // [N, K] F32 or BF16, last axis contiguous
  TensorView gate;    // like w, or none: then out = gelu_tanh(x·gateᵀ) ⊙ (x·wᵀ)
  TensorView out;     // [M, N] F32 or BF16, last axis contiguous, rows at any stride; rounded once
  TensorView bias{};  // [N] F32 contiguous, or none; neither bias nor activation with a gate
  Activation activation = Activation::kNone;  // of x·wᵀ + bias
};

struct ThinGemm {
  TensorView x;                           // [M, K] F32 or BF16, last axis contiguous, rows at any stride
  std::span<const ThinProduct> products;  // of this x: several take one pass, such as q, k and v
  // BF16: weights stored as F32 are rounded to nearest even before they are multiplied.
  DType weight_precision = DType::kF32;
  std::string_view implementation;
};

// Sums are float32, in pieces of at most 128 terms that are then added up; with AMX one sum over all terms.
void thin_gemm(Stream& stream, const ThinGemm& args);

// The most scratch memory that a call takes from its stream.
size_t thin_gemm_scratch_bytes(int64_t rows, int64_t k, bool gated, int threads);

}  // namespace zoetrope::kernels
