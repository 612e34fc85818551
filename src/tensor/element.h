// One element of a tensor of F32, BF16 or F64 as double: for references and checks, where speed does not matter.
#pragma once

#include "zoetrope/tensor.h"

#include "tensor/half.h"

namespace zoetrope {

// `offset` counts elements from the view's first.
inline double element(const TensorView& view, int64_t offset) {
  if (view.dtype() == DType::kF64) return view.data<double>()[offset];
  if (view.dtype() == DType::kBF16) return static_cast<double>(to_float(view.data<BFloat16>()[offset]));
  return static_cast<double>(view.data<float>()[offset]);
}

inline void set_element(const TensorView& view, int64_t offset, double value) {
  if (view.dtype() == DType::kF64) view.data<double>()[offset] = value;
  else if (view.dtype() == DType::kBF16) view.data<BFloat16>()[offset] = to_bfloat16(static_cast<float>(value));
  else view.data<float>()[offset] = static_cast<float>(value);
}

}  // namespace zoetrope
