// UTF-8 to code points and back, strictly: no surrogates, no overlong forms, nothing beyond U+10FFFF. Not for other
// encodings; for text that was decoded in the wrong one see text/mojibake.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace zoetrope {

struct DecodedChar {
  char32_t code = 0;
  size_t bytes = 0;  // 0: no valid sequence starts here
};

// The code point that starts at `offset`, which must lie inside `bytes`.
DecodedChar decode_char(std::string_view bytes, size_t offset);

// The whole of `bytes`, or nothing if any of it is not UTF-8.
std::optional<std::u32string> decode_utf8(std::string_view bytes);

// Throws Error naming the offending byte; `what` names the text in the message ("the prompt").
std::u32string decode_utf8_or_fail(std::string_view bytes, std::string_view what);

void append_utf8(char32_t code, std::string& out);
std::string encode_utf8(std::u32string_view text);

}  // namespace zoetrope
