// Layout: uint32 size of the trie in bytes, the trie (darts-clone double array, little endian), the replacements.
// Format and bit fields: SentencePiece (src/normalizer.cc) and darts-clone (include/darts.h).
#include "text/charsmap.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grapheme.h"

namespace zoetrope::text {

namespace {

// A grapheme of at least this many bytes is never looked up as a whole (a rule of the reference, not of the format).
constexpr size_t kLongGrapheme = 6;

std::string decode_base64(std::string_view text, std::string_view where) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> digit{};
  digit.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) digit[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  size_t padding = 0;
  while (padding < 2 && !text.empty() && text.back() == '=') {
    text.remove_suffix(1);
    ++padding;
  }
  if ((text.size() + padding) % 4 != 0)
    fail("{}: precompiled_charsmap is not base64: its length is not a multiple of 4", where);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t buffer = 0;
  int bits = 0;
  for (char c : text) {
    const int value = digit[static_cast<uint8_t>(c)];
    if (value < 0) fail("{}: precompiled_charsmap is not base64", where);
    buffer = (buffer << 6 | static_cast<uint32_t>(value)) & 0xFFFFFF;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes.push_back(static_cast<char>(static_cast<uint8_t>(buffer >> bits)));
    }
  }
  return bytes;
}

bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t leaf_value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & (0x80000000 | 0xFF); }
size_t offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap Charsmap::from_base64(std::string_view base64, std::string_view where) {
  return {decode_base64(base64, where), where};
}

Charsmap::Charsmap(std::string_view bytes, std::string_view where) {
  static_assert(std::endian::native == std::endian::little);
  uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes < sizeof(uint32_t) || trie_bytes > bytes.size() - sizeof trie_bytes) {
    fail("{}: precompiled_charsmap is truncated: it announces a trie of {} bytes and holds {} bytes in all", where,
         trie_bytes, bytes.size());
  }
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, units_.size() * sizeof(uint32_t));
  replacements_ = bytes.substr(sizeof trie_bytes + units_.size() * sizeof(uint32_t));
  if (!decode_utf8(replacements_)) fail("{}: the replacements of precompiled_charsmap are not UTF-8", where);
}

// A damaged map must not lead outside the arrays: such a step counts as "no rule".
bool Charsmap::transform(std::string_view chunk, std::string_view& replacement) const {
  size_t node = offset(units_[0]);
  for (char c : chunk) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte == 0) return false;
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) return false;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) return false;
    const size_t start = leaf_value(units_[node]);
    if (start > replacements_.size()) return false;
    replacement = std::string_view(replacements_).substr(start);
    replacement = replacement.substr(0, replacement.find('\0'));
    return true;
  }
  return false;
}

// Grapheme by grapheme: a short grapheme that begins with a key is replaced as a whole, whatever follows the key in it.
// That loses marks ("º" + acute becomes "o"); the reference does so, and the encoder was trained with it.
std::string Charsmap::normalize(std::string_view text) const {
  const std::u32string chars = decode_utf8_or_fail(text, "the text");
  std::string out;
  out.reserve(text.size());
  size_t byte = 0;
  for (size_t i = 0; i < chars.size();) {
    const size_t end = grapheme_end(chars, i);
    size_t bytes = 0;
    for (size_t j = i; j < end; ++j) bytes += decode_char(text, byte + bytes).bytes;
    std::string_view replacement;
    if (bytes < kLongGrapheme && transform(text.substr(byte, bytes), replacement)) {
      out += replacement;
      byte += bytes;
    } else {
      for (size_t j = i; j < end; ++j) {
        const std::string_view single = text.substr(byte, decode_char(text, byte).bytes);
        out += transform(single, replacement) ? replacement : single;
        byte += single.size();
      }
    }
    i = end;
  }
  return out;
}

}  // namespace zoetrope::text
