// The relative L2 distance of two tensors, which runs report for latents and tests compare with bounds. Not fast:
// summed by one thread, in double.
#pragma once

#include "zoetrope/tensor.h"

namespace zoetrope {

// ‖value − reference‖₂ / ‖reference‖₂ of two contiguous F32 tensors of one shape. Infinity if a value is not finite,
// or if the reference is zero and the value is not, so that every bound fails.
double relative_l2(const TensorView& value, const TensorView& reference);

}  // namespace zoetrope
