// Tables from Python's codecs (charmaps.inc); behaviour of the sloppy encodings and of "utf-8-variants" from
// ftfy 6.3.1.
#include "text/encodings.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace zoetrope::text {

namespace {

struct Charmap {
  std::string_view name;
  bool sloppy;
  std::array<uint16_t, 128> upper_half;
};

#include "text/charmaps.inc"

constexpr const Charmap& kWindows1252 = kCharmaps[0];
static_assert(kWindows1252.name == "sloppy-windows-1252");

constexpr char32_t kReplacement = 0xFFFD;
constexpr char kLostByte = 0x1A;

std::vector<OneByteEncoding> make_encodings() {
  std::vector<OneByteEncoding> encodings = {{"latin-1", false, nullptr}};
  for (const Charmap& map : kCharmaps) encodings.emplace_back(map.name, map.sloppy, map.upper_half.data());
  return encodings;
}

}  // namespace

std::optional<std::string> OneByteEncoding::encode(std::u32string_view text) const {
  std::string bytes;
  bytes.reserve(text.size());
  for (char32_t c : text) {
    if (sloppy_ && c == kReplacement) {
      bytes.push_back(kLostByte);
    } else if (c < 0x80) {
      if (sloppy_ && c == static_cast<char32_t>(kLostByte)) return std::nullopt;
      bytes.push_back(static_cast<char>(c));
    } else if (upper_half_ == nullptr) {
      if (c > 0xFF) return std::nullopt;
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(c)));
    } else {
      const uint16_t* end = upper_half_ + 128;
      const uint16_t* found = std::find(upper_half_, end, c);
      if (found == end) return std::nullopt;
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(0x80 + (found - upper_half_))));
    }
  }
  return bytes;
}

std::span<const OneByteEncoding> suspected_encodings() {
  static const std::vector<OneByteEncoding> encodings = make_encodings();
  return encodings;
}

char32_t decode_windows_1252(uint8_t byte) { return byte < 0x80 ? byte : kWindows1252.upper_half[byte - 0x80U]; }

std::optional<std::u32string> decode_utf8_variants(std::string_view bytes) {
  const size_t size = bytes.size();
  const auto byte = [&](size_t i) { return i < size ? static_cast<uint8_t>(bytes[i]) : uint8_t{0}; };
  const auto within = [&](size_t i, uint8_t low, uint8_t high) { return byte(i) >= low && byte(i) <= high; };
  // The reference accepts a newline that ends the text in place of a sequence's last byte (its patterns use "$").
  const auto closing_newline = [&](size_t i) { return i + 1 == size && bytes[i] == '\n'; };
  std::u32string text;
  for (size_t i = 0; i < size;) {
    if (byte(i) == 0xC0 && i + 1 < size && (byte(i + 1) == 0x80 || closing_newline(i + 1))) {
      text.push_back(U'\0');
      i += 2;
      continue;
    }
    if (byte(i) == 0xED && within(i + 1, 0xA0, 0xAF) && within(i + 2, 0x80, 0xBF) && byte(i + 3) == 0xED &&
        within(i + 4, 0xB0, 0xBF) && (within(i + 5, 0x80, 0xBF) || closing_newline(i + 5))) {
      text.push_back(0x10000U + ((byte(i + 1) & 0x0FU) << 16) + ((byte(i + 2) & 0x3FU) << 10) +
                     ((byte(i + 4) & 0x0FU) << 6) + (byte(i + 5) & 0x3FU));
      i += 6;
      continue;
    }
    const DecodedChar next = decode_char(bytes, i);
    if (next.bytes == 0) return std::nullopt;
    text.push_back(next.code);
    i += next.bytes;
  }
  return text;
}

}  // namespace zoetrope::text
