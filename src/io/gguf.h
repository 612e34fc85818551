// The header of a GGUF file: the container of llama.cpp, in which quantised weights are published. tensor_file.h reads
// files by it. Format: docs/spec/weights.md, section 5.1.
#pragma once

#include <string>
#include <string_view>

#include "io/tensor_file.h"

namespace zoetrope::io {

inline constexpr std::string_view kGgufMagic = "GGUF";

// `contents` are all bytes of the file, `file` is its name, for errors. Versions 2 and 3. Shapes are in the order of
// the other containers, slowest axis first; tensors in blocks (Q8_0, Q4_K, …) have no DType. Of the metadata, lists are
// given as their length and type: "[5 of i32]".
TensorHeader read_gguf_header(std::string_view contents, const std::string& file);

}  // namespace zoetrope::io
