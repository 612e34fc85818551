// Repair of text that was decoded in the wrong encoding ("cafÃ©"). Not for any other blemish; those are in prompt.cpp.
#pragma once

#include <string>
#include <string_view>

namespace zoetrope::text {

// The text as it was meant, as far as that can be told; unchanged where it looks right.
std::u32string fix_encoding(std::u32string text);

// C1 control characters as the Windows-1252 characters they nearly always stand for.
std::u32string fix_c1_controls(std::u32string text);

}  // namespace zoetrope::text
