// The byte patterns of UTF-8 (RFC 3629, table of section 4).
#include "base/utf8.h"

#include <cstdint>

#include "base/error.h"

namespace zoetrope {

DecodedChar decode_char(std::string_view bytes, size_t offset) {
  const auto byte = [&](size_t i) {
    return offset + i < bytes.size() ? static_cast<uint8_t>(bytes[offset + i]) : uint8_t{0};
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range is what excludes overlong forms, surrogates and code points beyond the last plane.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {};
  char32_t code = static_cast<char32_t>(lead & (0x7F >> length));
  code = code << 6 | (byte(1) & 0x3FU);
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3FU);
  }
  return {code, length};
}

std::optional<std::u32string> decode_utf8(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const DecodedChar next = decode_char(bytes, i);
    if (next.bytes == 0) return std::nullopt;
    text.push_back(next.code);
    i += next.bytes;
  }
  return text;
}

std::u32string decode_utf8_or_fail(std::string_view bytes, std::string_view what) {
  std::optional<std::u32string> text = decode_utf8(bytes);
  if (text) return *std::move(text);
  size_t offset = 0;
  while (const size_t length = decode_char(bytes, offset).bytes) offset += length;
  fail("{} is not valid UTF-8: byte 0x{:02X} at offset {} starts no character; save the text as UTF-8", what,
       static_cast<uint8_t>(bytes[offset]), offset);
}

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t value) { out.push_back(static_cast<char>(static_cast<uint8_t>(value))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size() * 2);
  for (char32_t code : text) append_utf8(code, out);
  return out;
}

}  // namespace zoetrope
