// Finds NaN and infinities in a tensor. One pass that reads every value once, on the calling thread.
#pragma once

#include <cstdint>
#include <optional>

#include "zoetrope/tensor.h"

namespace zoetrope {

// The end of messages about such a value: the key that turns the check off.
inline constexpr const char* kGoOnAnyway = "check_finite=false goes on with such values";

struct NonFinite {
  int64_t index;  // of the element, in row-major order
  float value;    // NaN or ±infinity
};

// The first NaN or infinity of `values`, F32 or BF16 with any strides; empty if all are finite.
std::optional<NonFinite> first_non_finite(const TensorView& values);

}  // namespace zoetrope
