// The one-byte encodings that UTF-8 is mistaken for, both ways, and the variants of UTF-8 that turn up behind them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zoetrope::text {

// An encoding whose lower half is ASCII. A "sloppy" one gives the bytes that its standard leaves open their Latin-1
// meaning, and writes the replacement character U+FFFD, where a byte was lost, as 0x1A.
class OneByteEncoding {
 public:
  constexpr OneByteEncoding(std::string_view name, bool sloppy, const uint16_t* upper_half)
      : name_(name), sloppy_(sloppy), upper_half_(upper_half) {}

  std::string_view name() const { return name_; }
  bool sloppy() const { return sloppy_; }

  // The bytes of the text, or nothing if it could not have come from this encoding.
  std::optional<std::string> encode(std::u32string_view text) const;

 private:
  std::string_view name_;
  bool sloppy_;
  const uint16_t* upper_half_;  // what 0x80 to 0xFF mean; null: themselves (Latin-1)
};

// In the order in which they are suspected; Latin-1 first.
std::span<const OneByteEncoding> suspected_encodings();

// Windows-1252 with its five holes filled as in Latin-1.
char32_t decode_windows_1252(uint8_t byte);

// UTF-8 in which characters beyond U+FFFF may also be written as two surrogates of three bytes (CESU-8) and U+0000 as
// C0 80 (Java); nothing if the bytes are not that.
std::optional<std::u32string> decode_utf8_variants(std::string_view bytes);

}  // namespace zoetrope::text
