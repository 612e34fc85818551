// Where a range of heads is to be written: a piece of an exchange's send buffer, or of a plain tensor.
#pragma once

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

namespace zoetrope {

struct HeadSlot {
  IndexRange heads;
  TensorView out;  // [B, S, heads.size(), D], D contiguous, other strides as they come
};

}  // namespace zoetrope
