// Where a tensor leaves the finite numbers. One pass that reads every value once, on the calling thread.
#pragma once

#include <cstdint>
#include <optional>

#include "zoetrope/tensor.h"

namespace zoetrope {

// How a sentence about such a value ends: the key of a run that does not look for them.
inline constexpr const char* kGoOnAnyway = "check_finite=false goes on with such values";

struct NonFinite {
  int64_t index;  // of the element, counted row by row
  float value;    // NaN or ±infinity
};

// The first NaN or infinity of `values`, F32 or BF16 with any strides; none where all are finite.
std::optional<NonFinite> first_non_finite(const TensorView& values);

}  // namespace zoetrope
