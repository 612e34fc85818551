// The tokenizer that a GGUF file of the text encoder holds. docs/spec/weights.md, section 5.5.
#pragma once

#include <optional>

#include "io/weights/tensor_file.h"
#include "text/tokenizer.h"

namespace zoetrope::pipeline {

// Nothing where the file has none. Throws Error for one that is damaged or of another kind.
std::optional<text::Tokenizer> gguf_tokenizer(const io::TensorFile& file);

}  // namespace zoetrope::pipeline
