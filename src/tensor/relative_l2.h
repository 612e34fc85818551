// How far one tensor is off another, as runs state it of their latents and tests hold it against bounds. No kernel:
// summed by one thread, in double.
#pragma once

#include "zoetrope/tensor.h"

namespace zoetrope {

// ‖value − reference‖₂ / ‖reference‖₂ of two contiguous F32 tensors of one shape. Infinity where a value is not finite,
// or where the reference is zero and the value is not; so whatever is not close is above every bound.
double relative_l2(const TensorView& value, const TensorView& reference);

}  // namespace zoetrope
