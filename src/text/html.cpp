// The names are the table of the HTML standard (section 13.5, as Python ships it), the numeric rules those of its
// section 13.2.5.80.
#include "text/html.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "text/mojibake.h"
#include "text/regex.h"

namespace zoetrope::text {

namespace {

using icu::UnicodeString;

struct HtmlEntity {
  std::string_view name;  // without '&', with ';' if it has one
  std::u16string_view text;
};

#include "text/html_entities.inc"

std::optional<UnicodeString> find_entity(const UnicodeString& name) {
  std::string utf8;
  name.toUTF8String(utf8);
  const auto* found =
      std::lower_bound(std::begin(kHtmlEntities), std::end(kHtmlEntities), utf8,
                       [](const HtmlEntity& entity, const std::string& key) { return entity.name < key; });
  if (found == std::end(kHtmlEntities) || found->name != utf8) return std::nullopt;
  return UnicodeString(found->text.data(), static_cast<int32_t>(found->text.size()));
}

// The character that a number ("#…" or "#x…", with or without semicolon) stands for; none at all for control characters
// and noncharacters.
UnicodeString numeric_reference(const UnicodeString& number) {
  const bool hex = number.charAt(1) == 'x' || number.charAt(1) == 'X';
  UChar32 code = 0;
  for (int32_t i = hex ? 2 : 1; i < number.length() && number.charAt(i) != ';'; ++i) {
    // Saturates: everything beyond the last plane is the same error.
    if (code <= 0x10FFFF) code = code * (hex ? 16 : 10) + u_digit(number.charAt(i), 16);
  }
  if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return u"\uFFFD";
  if (code >= 0x80 && code <= 0x9F) return decode_windows_1252(static_cast<char16_t>(code));
  if (code == 0x0D) return u"\r";
  const bool nothing = code <= 0x08 || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
                       (code >= 0xFDD0 && code <= 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
  return nothing ? UnicodeString() : UnicodeString(code);
}

}  // namespace

UnicodeString unescape_html(const UnicodeString& text) {
  static const Regex reference(R"(&(?:#[0-9]+;?|#[xX][0-9A-Fa-f]+;?|[^\t\n\f <&#;]{1,32};?))");
  return reference.replace(text, [](const UnicodeString& match) {
    const UnicodeString name(match, 1);
    if (name.startsWith(u"#")) return numeric_reference(name);
    // The whole, or else the longest beginning of at least two characters that is a name.
    if (const auto found = find_entity(name)) return *found;
    for (int32_t length = name.length() - 1; length > 1; --length) {
      if (const auto found = find_entity(UnicodeString(name, 0, length))) return *found + UnicodeString(name, length);
    }
    return match;
  });
}

UnicodeString unescape_html_strictly(const UnicodeString& text) {
  static const Regex reference("&#?[0-9A-Za-z]{1,24};");
  return reference.replace(text, [](const UnicodeString& match) {
    if (match.charAt(1) == '#') {
      // What still has a semicolon was not understood to its end, and stays as it is.
      UnicodeString unescaped = unescape_html(match);
      return unescaped.indexOf(u';') < 0 ? unescaped : match;
    }
    const UnicodeString name(match, 1);
    if (const auto known = find_entity(name)) return *known;
    // ftfy knows a name of lower-case letters in capitals too, unless HTML reads something else in it.
    const icu::Locale& root = icu::Locale::getRoot();
    UnicodeString lower = UnicodeString(name).toLower(root);
    if (auto known = find_entity(lower);
        known && UnicodeString(lower).toUpper(root) == name && unescape_html(match) == match) {
      return known->toUpper(root);
    }
    return match;
  });
}

}  // namespace zoetrope::text
