// Blocks of GGUF files from values; block_formats.h has their layouts and reads them.
#pragma once

#include <cstddef>
#include <string_view>

namespace zoetrope::io {

// Writes the block of 32 finite values that gguf's own `quants.quantize` makes of them. A scale that is too large for a
// float16 is written as infinity.
using BlockEncoder = void (*)(const float* values, std::byte* block);

// Of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0; null for any other name.
BlockEncoder find_block_encoder(std::string_view name);

}  // namespace zoetrope::io
