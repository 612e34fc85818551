// What the dtypes that are computed with are called in settings and reports.
#pragma once

#include <string_view>
#include <utility>

#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

inline constexpr std::pair<const char*, DType> kDTypeWords[] = {
    {"bf16", DType::kBF16}, {"float32", DType::kF32}, {"int8", DType::kI8}};

const char* dtype_word(DType dtype);

// The dtype that any spelling of its word names (dtype_spelling() in base/options.h). Throws Error for another word.
DType dtype_of(std::string_view word);

}  // namespace zoetrope::pipeline
