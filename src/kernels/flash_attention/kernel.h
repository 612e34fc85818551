// The interface of an implementation of flash attention. Problems and views have been checked when they get here;
// states are RowState.
#pragma once

#include <memory>

#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/state.h"
#include "kernels/implementation.h"

namespace zoetrope::kernels {

class FlashKernel {
 public:
  virtual ~FlashKernel() = default;
  virtual TileCounts accumulate(Stream& stream, RowState& state, const TensorView& q, const KeyBlock& block) const = 0;
  virtual TileCounts attend(Stream& stream, const TensorView& q, const KeyBlock& block, const Output& output) const = 0;
};

using FlashFactory = std::unique_ptr<FlashKernel> (*)(const FlashProblem& problem);

std::unique_ptr<FlashKernel> make_scalar_kernel(const FlashProblem& problem);

}  // namespace zoetrope::kernels
