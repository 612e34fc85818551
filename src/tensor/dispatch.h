// Promotion of a run-time dtype to a compile-time type, once, at an operation's entry point.
#pragma once

#include <string_view>

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope {

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<float>{}) or body(TypeTag<BFloat16>{}): the two compute dtypes. `what` names the tensor in the
// error.
template <typename Body>
decltype(auto) with_compute_type(DType dtype, const char* what, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(TypeTag<float>{});
    case DType::kBF16:
      return body(TypeTag<BFloat16>{});
    default:
      fail("{} has dtype {}, but F32 or BF16 is needed", what, dtype_name(dtype));
  }
}

// The same for stored weights: float, BFloat16, Float16 or double.
template <typename Body>
decltype(auto) with_stored_type(DType dtype, std::string_view what, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(TypeTag<float>{});
    case DType::kBF16:
      return body(TypeTag<BFloat16>{});
    case DType::kF16:
      return body(TypeTag<Float16>{});
    case DType::kF64:
      return body(TypeTag<double>{});
    default:
      fail("{} is stored as {}, but F32, BF16, F16 or F64 is needed", what, dtype_name(dtype));
  }
}

}  // namespace zoetrope
