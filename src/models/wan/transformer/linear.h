// A linear layer of the transformer as a call of the packed GEMM, and the rows it reads. Private to this folder.
#pragma once

#include "device/stream.h"
#include "kernels/gemm/packed.h"
#include "models/wan/transformer/weights.h"

namespace zoetrope::wan {

// Rows [M, K] of a tensor that is wider by 16 columns: a stride that is no power of two, so that the rows of a tile do
// not meet in one set of a cache.
inline constexpr int64_t kOperandPadding = 16;

// x [M, K] F32 or BF16 as the operand of a multiplication with `weight`: x itself, or converted into `into` [M, K].
TensorView as_operand(Stream& stream, const TensorView& x, const kernels::PackedMatrix& weight, const TensorView& into);

// out [M, N] = act(x [M, K]·weightᵀ + bias); x is converted in scratch memory where it is not an operand. Nothing where
// M = 0 (a rank without tokens).
void linear(Stream& stream, const TensorView& x, const LinearWeights& layer, const TensorView& out,
            kernels::Activation activation = kernels::Activation::kNone);

}  // namespace zoetrope::wan
