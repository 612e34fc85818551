// Does text look as if it had been decoded in the wrong encoding? Only the signs; the repair is in mojibake.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace zoetrope::text {

struct CharClassRange {
  char32_t first, last;
  uint32_t classes;
};

#include "text/char_classes.inc"

// The classes of char_classes.inc that a character is in.
uint32_t char_classes(char32_t c);

// Whether any one to seven neighbours are an unlikely combination.
bool looks_mistaken(std::u32string_view text);

}  // namespace zoetrope::text
