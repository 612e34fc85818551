// What forward() works in: every buffer of a rank, named once, so that what is booked is what the memory model counts.
// Not the attention's places for q, k and v: those are attention's to book and to count.
#pragma once

#include <algorithm>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "models/wan/config.h"

namespace zoetrope::wan {

// A rank's tokens pass a block's layers in chunks of about as many rows, so that what one layer writes the next finds
// in cache, while a chunk is long enough to repay the reading and widening of the weights. Measured, a block of
// the 1.3B model in bf16 at 7 800 tokens on two threads, seconds of the better of two forwards for chunks of at most
// 520, 800, 1 600, 2 600 and 7 800 rows: 3.42, 3.36, 3.14, 3.24, 3.53 (and of memory for the last 263 MB more than for
// 1 600).
inline constexpr int64_t kMostChunkRows = 1600;
// How many rows a chunk has: all but the last of a sample.
inline int64_t chunk_rows(int64_t tokens) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(tokens, kMostChunkRows));
  return ceil_div(tokens, chunks);
}

// S tokens of this rank, batch B, C rows of a chunk, W the model dtype, O what a product reads: W or F32.
struct TransformerBuffers {
  Tensor x;        // [B, S, d] W: the residual stream
  Tensor o;        // [B, S, d] W: self-attention's result
  Tensor operand;  // C·(max(d, patch) + padding) O: what a product of the chunk reads
  Tensor wide;     // bytes: q, k, v of the chunk, or the feed-forward's hidden rows

  Tensor sinusoid;     // [B, freq_dim] F32
  Tensor time_hidden;  // [B, d] F32
  Tensor time_float;   // [B, d] F32: temb, at first as computed, then as rounded to W
  Tensor temb;         // [B, d] W
  Tensor time_act;     // [B, d] W
  Tensor time_proj;    // [B, 6d] W
  Tensor proj_float;   // [B, 6, d] F32: time_proj
  Tensor modulation;   // [layers, B, 6, d] F32
  Tensor head_rows;    // [B, 2, d] F32

  void book(const TransformerConfig& config, int64_t tokens_local, int64_t batch, DType dtype);
};

// Bytes of these buffers, of the rotary table and of the products' scratch memory on so many threads.
int64_t transformer_workspace_bytes(const TransformerConfig& config, int64_t tokens_local, int64_t batch, DType dtype,
                                    int threads);
// The last of them: the most that one product of a chunk takes.
int64_t transformer_scratch_bytes(const TransformerConfig& config, int64_t tokens_local, DType dtype, int threads);

}  // namespace zoetrope::wan
