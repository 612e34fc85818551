// Repair of text that was decoded in the wrong encoding ("cafÃ©"), as ftfy 6.3.1 does it. Other repairs are in
// prompt.cpp.
#pragma once

#include <unicode/unistr.h>

#include <array>
#include <optional>
#include <span>
#include <string>

namespace zoetrope::text {

// The text as it was meant, as far as that can be told; unchanged where it looks right.
icu::UnicodeString fix_encoding(icu::UnicodeString text);

// C1 control characters replaced by the Windows-1252 characters that they nearly always stand for.
icu::UnicodeString fix_c1_controls(icu::UnicodeString text);
char16_t decode_windows_1252(char16_t byte);  // 0x80 to 0xFF

// The steps of fix_encoding(), for tests.

// Whether any one to seven neighbours are an unlikely combination.
bool looks_like_mojibake(const icu::UnicodeString& text);

// An encoding that UTF-8 is mistaken for; its lower half is ASCII. A "sloppy" one decodes the bytes that its standard
// leaves open as Latin-1, and encodes the replacement character U+FFFD (a lost byte) as 0x1A.
struct OneByteEncoding {
  std::string name;  // ICU's
  bool sloppy = false;
  std::array<char16_t, 128> upper_half = {};  // the characters of the bytes 0x80 to 0xFF

  // The bytes of the text, as the characters U+0000 to U+00FF; nothing if the encoding does not have all of its
  // characters.
  std::optional<icu::UnicodeString> encode(const icu::UnicodeString& text) const;
};

// In the order in which they are tried.
std::span<const OneByteEncoding> suspected_encodings();

// The text of UTF-8 bytes (as characters), in which characters beyond U+FFFF may also be written as two surrogates of
// three bytes (CESU-8) and U+0000 as C0 80 (Java); nothing if the bytes are not that.
std::optional<icu::UnicodeString> decode_utf8_variants(const icu::UnicodeString& bytes);

}  // namespace zoetrope::text
