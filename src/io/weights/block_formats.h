// Quantised weights in blocks, as GGUF files hold them: what a block takes, and its values. docs/spec/weights.md,
// section 5.2, has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zoetrope::io {

struct BlockFormat {
  const char* name;   // as GGUF files spell it: "Q8_0", "Q4_K"
  uint64_t elements;  // of a block, along a row
  uint64_t bytes;     // of a block
  // Writes the values of `count` blocks, `elements` of each. They have the bits of the format's definition, gguf's
  // `quants.dequantize`: a block whose scale is NaN or infinite has values that are.
  void (*decode)(const std::byte* blocks, int64_t count, float* values);
};

// Null for any other name.
const BlockFormat* find_block_format(std::string_view name);

}  // namespace zoetrope::io
