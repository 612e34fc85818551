// The running state of exact attention, and what is done to it without keys: empty it, finish. One layout for every
// implementation, so that these are written once; they touch each element once and are no hot spot.
#pragma once

#include <cstdint>
#include <limits>

#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::kernels {

// Rows are (b, h, i), i the query token, i fastest. A row's value is o / l; its weights were taken relative to 2^m.
//
// m says two more things. kNoKeys: no valid key has been seen, the result is zero. kAllMinusInfinity: keys have been
// seen, and every score was −∞; the sum of weights is 0 and the result is 0/0, as in the definition. The second is
// finite, so that differences to it stay clean.
struct RowState final : FlashState {
  static constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
  static constexpr float kAllMinusInfinity = std::numeric_limits<float>::lowest();

  explicit RowState(const FlashProblem& problem);

  int64_t rows;      // B·H·Sq
  int64_t o_stride;  // floats from row to row: D rounded up to whole cache lines
  Tensor o;          // [rows, o_stride]
  Tensor l;          // [rows]
  Tensor m;          // [rows]
};

// Floats between two rows of o.
int64_t state_row_stride(const FlashProblem& problem);
size_t row_state_bytes(const FlashProblem& problem);

// Where finished rows go.
struct Output {
  TensorView o;            // [B, Sq, H, D]
  TensorView log_sum_exp;  // [B, Sq, H] F32; empty: not wanted

  template <typename T>
  T* row(int64_t b, int64_t i, int64_t h) const {
    return o.data<T>() + b * o.stride(0) + i * o.stride(1) + h * o.stride(2);
  }
  // ln(l·2^m) of a row, where it is wanted. Without a valid key l is not set.
  void write_log_sum(int64_t b, int64_t i, int64_t h, float l, float m) const;
};

void init_rows(Stream& stream, RowState& state);
void finish_rows(Stream& stream, const FlashProblem& problem, const RowState& state, const Output& output);

// One row: out[d] = o[d] / l, zeros where no key was seen.
template <typename T>
void finish_row(const float* o, float l, float m, T* out, int64_t head_dim);

}  // namespace zoetrope::kernels
