// The dtype that an option names: "bf16", or float32.
#pragma once

#include <string_view>

#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

inline DType dtype_of(std::string_view name) { return name == "bf16" ? DType::kBF16 : DType::kF32; }

}  // namespace zoetrope::pipeline
