// Normalisations of the Wan family. Statistics and arithmetic are float32, the result is rounded once.
#pragma once

#include <span>
#include <string>

#include "zoetrope/head_slot.h"
#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

// y = LN(x)·weight + bias, then ·(1 + scale) + shift, per row over the last axis (wan.md section 2.4).
struct LayerNorm {
  TensorView x;       // [B, S, d] F32 or BF16, last axis contiguous
  TensorView weight;  // [d] F32, optional (both or neither)
  TensorView bias;    // [d] F32
  TensorView scale;   // [B, 1, d] or [B, S, d] F32, optional (both or neither); last axis contiguous
  TensorView shift;
  float eps = 1e-6f;
  TensorView out;              // [B, S, d] F32 or BF16
  bool round_to_bf16 = false;  // out is F32, but of BF16 values: the operand of a multiplication
  std::string implementation;
};
void layer_norm(Stream& stream, const LayerNorm& args);

// y = x·rsqrt(mean(x² over all heads) + eps)·weight, then the rotary embedding of every head on interleaved pairs (2i,
// 2i+1). Each range of heads is written to its slot: the send buffer of an exchange, or one plain tensor. Without
// `weight` there is only the rotation, without `cos` only the norm; with neither it is a scatter of heads whose bytes
// are counted as copied.
struct RmsNormRope {
  TensorView x;       // [B, S, H, D], D contiguous, F32 or BF16
  TensorView weight;  // [H·D] F32 or BF16
  TensorView cos;     // [S, D/2] F32, per token
  TensorView sin;     // [S, D/2] F32
  float eps = 1e-6f;
  std::span<const HeadSlot> slots;  // cover [0, H)
  // Where these are some of the heads that the norm is over: the sum of x² over all of them, [B·S] F32, and how many
  // they are.
  TensorView squares = {};
  int64_t all_heads = 0;
  std::string implementation;
};
void rms_norm_rope(Stream& stream, const RmsNormRope& args);

// out[i] = Σ x[i]², as rms_norm_rope() adds it up. x [M, K] F32 or BF16, last axis contiguous; out [M] F32.
void sum_of_squares(Stream& stream, const TensorView& x, const TensorView& out);

// y = weight · cast(x·rsqrt(mean(x²) + eps)) per row, as in T5: cast before it is multiplied by the weight
// (wan.md 5.2).
struct RmsNorm {
  TensorView x;       // [M, d] F32 or BF16
  TensorView weight;  // [d] same dtype as out
  float eps = 1e-6f;
  TensorView out;  // [M, d]
  std::string implementation;
};
void rms_norm(Stream& stream, const RmsNorm& args);

}  // namespace zoetrope::kernels
