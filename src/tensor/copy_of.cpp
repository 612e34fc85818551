#include "tensor/copy_of.h"

#include <cstring>

#include "base/error.h"

namespace zoetrope {

Tensor copy_of(const TensorView& view) {
  ZT_CHECK(view.contiguous(), "{} is not contiguous", view.shape().to_string());
  Tensor copied = Tensor::uninitialized(view.dtype(), view.shape());
  if (view.bytes() > 0) std::memcpy(copied.view().raw(), view.raw(), view.bytes());
  return copied;
}

}  // namespace zoetrope
