// A tensor with the values of a view, as contiguous memory of its own. For results that are handed on once or once a
// segment: its bytes are not counted, as those of device/stream.h's copy() are.
#pragma once

#include "zoetrope/tensor.h"

namespace zoetrope {

// `view` is contiguous, of any dtype.
Tensor copy_of(const TensorView& view);

}  // namespace zoetrope
