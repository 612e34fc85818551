// The names are the table of the HTML standard (section 13.5, as Python ships it), the numeric rules those of its
// section 13.2.5.80.
#include "text/html.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "text/encodings.h"

namespace zoetrope::text {

namespace {

struct HtmlEntity {
  std::string_view name;  // without '&', with ';' if it has one
  std::u32string_view text;
};

#include "text/html_entities.inc"

template <size_t N>
std::optional<std::u32string_view> find_entity(const HtmlEntity (&table)[N], std::u32string_view name) {
  std::string ascii;
  for (char32_t c : name) {
    if (c >= 0x80) return std::nullopt;
    ascii.push_back(static_cast<char>(c));
  }
  const auto found = std::lower_bound(std::begin(table), std::end(table), ascii,
                                      [](const HtmlEntity& entity, std::string_view key) { return entity.name < key; });
  if (found == std::end(table) || found->name != ascii) return std::nullopt;
  return found->text;
}

int digit_value(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return 16;
}

bool is_alphanumeric(char32_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The character a number stands for; none at all for the control characters and noncharacters.
std::u32string numeric_reference(char32_t code) {
  if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return U"\uFFFD";
  if (code >= 0x80 && code <= 0x9F) return {decode_windows_1252(static_cast<uint8_t>(code))};
  if (code == 0x0D) return U"\r";
  const bool nothing = code <= 0x08 || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
                       (code >= 0xFDD0 && code <= 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
  return nothing ? std::u32string() : std::u32string{code};
}

// Reads "#…" or "#x…" at text[at]; the index behind it, or `at` if there are no digits.
size_t read_number(std::u32string_view text, size_t at, std::u32string& out) {
  size_t i = at + 1;
  const bool hex = i < text.size() && (text[i] == 'x' || text[i] == 'X');
  if (hex) ++i;
  const int base = hex ? 16 : 10;
  const size_t digits = i;
  char32_t code = 0;
  for (; i < text.size() && digit_value(text[i]) < base; ++i) {
    // Saturates: everything beyond the last plane is the same error.
    if (code <= 0x10FFFF) code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(text[i]));
  }
  if (i == digits) return at;
  if (i < text.size() && text[i] == ';') ++i;
  out += numeric_reference(code);
  return i;
}

// Reads a name at text[at]; the index behind it, or `at` if nothing there can be one.
size_t read_name(std::u32string_view text, size_t at, std::u32string& out) {
  constexpr size_t kLongestName = 32;
  constexpr std::u32string_view kNotInNames = U"\t\n\f <&#;";
  size_t end = at;
  while (end < text.size() && end - at < kLongestName && kNotInNames.find(text[end]) == std::u32string_view::npos)
    ++end;
  if (end == at) return at;
  if (end < text.size() && text[end] == ';') ++end;
  const std::u32string_view name = text.substr(at, end - at);
  // The whole, or else the longest beginning of at least two characters that is a name.
  for (size_t length = name.size(); length > 0; --length) {
    if (length == 1 && name.size() > 1) break;
    if (const auto found = find_entity(kHtmlEntities, name.substr(0, length))) {
      out += *found;
      out += name.substr(length);
      return end;
    }
  }
  out += U'&';
  out += name;
  return end;
}

}  // namespace

std::u32string unescape_html(std::u32string_view text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '&' && i + 1 < text.size()) {
      const size_t end = text[i + 1] == '#' ? read_number(text, i + 1, out) : read_name(text, i + 1, out);
      if (end > i + 1) {
        i = end;
        continue;
      }
    }
    out += text[i++];
  }
  return out;
}

std::u32string unescape_html_strictly(std::u32string_view text) {
  constexpr size_t kLongest = 24;  // letters and digits
  std::u32string out;
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] != '&') continue;
    const bool numeric = i + 1 < text.size() && text[i + 1] == '#';
    const size_t begin = i + (numeric ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && end - begin <= kLongest && is_alphanumeric(text[end])) ++end;
    if (end == begin || end - begin > kLongest || end == text.size() || text[end] != ';') continue;
    const std::u32string_view reference = text.substr(i, end + 1 - i);
    std::u32string replacement(reference);
    if (numeric) {
      // What still has a semicolon was not understood to its end, and stays as it is.
      std::u32string unescaped = unescape_html(reference);
      if (unescaped.find(U';') == std::u32string::npos) replacement = std::move(unescaped);
    } else if (const auto known = find_entity(kHtmlEntities, reference.substr(1))) {
      replacement = *known;
    } else if (const auto capital = find_entity(kUpperCaseEntities, reference.substr(1))) {
      replacement = *capital;
    }
    out.pop_back();
    out += replacement;
    i = end;
  }
  return out;
}

}  // namespace zoetrope::text
