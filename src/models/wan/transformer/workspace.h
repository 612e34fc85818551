// The buffers of forward() on one rank. One list serves booking and the memory model. Not the attention's buffers for
// q, k and v: attention books and counts those.
#pragma once

#include <algorithm>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "models/wan/config.h"

namespace zoetrope::wan {

// A rank's tokens pass a block's layers in chunks of about this many rows: few enough that the next layer finds them in
// cache, many enough to repay reading and widening the weights. Measured, a block of
// the 1.3B model in bf16 at 7 800 tokens on two threads, seconds of the better of two forwards for chunks of at most
// 520, 800, 1 600, 2 600 and 7 800 rows: 3.42, 3.36, 3.14, 3.24, 3.53 (and of memory for the last 263 MB more than for
// 1 600).
inline constexpr int64_t kMostChunkRows = 1600;
// Rows of a chunk; the last one of a sample may have fewer.
inline int64_t chunk_rows(int64_t tokens) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(tokens, kMostChunkRows));
  return ceil_div(tokens, chunks);
}

// The sizes that the buffers are booked for.
struct TransformerSize {
  int64_t tokens = 0;     // S, of this rank
  int64_t batch = 1;      // B
  int64_t group = 1;      // G, samples that attention takes together
  int64_t timesteps = 1;  // V, most values of a forward
  bool keeps_residual = false;
  int64_t frames = 0;         // of tokens, of all ranks: Animate has face tokens for each
  DType dtype = DType::kF32;  // W, the model's
  int tensor = 1;             // ranks that share every layer: each has d / tensor columns of q, k, v and o
};

// C rows of a chunk, O what a matrix multiplication reads: W or F32.
struct TransformerBuffers {
  Tensor x;          // [B, S, d] W: the residual stream
  Tensor o;          // [G, S, d] W: self-attention's result, [G, S, d / tensor] of it; between blocks of VACE a hint of
                     // the control stream, of Animate what is added
  Tensor control;    // [G, S, d] W: VACE's second residual stream; else empty
  Tensor residual;   // [B, S, d] W: what the blocks added to x, where that is kept
  Tensor minus_one;  // [d] F32, with it
  Tensor face_keys;  // [adapters, 2, B, frames·face tokens, d] W: of Animate's face adapters; else empty
  Tensor operand;    // C·(max(d, patch) + padding) O: what a matrix multiplication of the chunk reads
  Tensor wide;       // bytes: q, k, v of the chunk, or the feed-forward's hidden rows
  Tensor sums;       // [C, d] F32: of a chunk, what ranks that share a layer add up; else empty

  Tensor sinusoid;      // [V, freq_dim] F32
  Tensor time_hidden;   // [V, d] F32
  Tensor time_float;    // [V, d] F32: temb, at first as computed, then as rounded to W
  Tensor temb;          // [V, d] W
  Tensor time_act;      // [V, d] W
  Tensor time_proj;     // [V, 6d] W
  Tensor proj_float;    // [V, 6, d] F32: time_proj
  Tensor modulation;    // [blocks, V, 6, d] F32
  Tensor head_rows;     // [V, 2, d] F32
  Tensor hint_factors;  // [2, d] F32: a hint's scale for every channel, and zeros; VACE

  void book(const TransformerConfig& config, const TransformerSize& size);
};

// Bytes of these buffers, of the rotary table, of the scratch of matrix multiplications on `threads` threads, and of
// what a sum over tensor ranks receives.
int64_t transformer_workspace_bytes(const TransformerConfig& config, const TransformerSize& size, int threads);
// The scratch alone: the largest of any matrix multiplication of a chunk.
int64_t transformer_scratch_bytes(const TransformerConfig& config, int64_t tokens_local, DType dtype, int threads,
                                  int tensor = 1);

}  // namespace zoetrope::wan
