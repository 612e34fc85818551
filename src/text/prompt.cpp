// ftfy.fix_text (6.3.1, default settings), then html.unescape twice, then white space, in the order of diffusers'
// prompt_clean. Repair of surrogates, a step of ftfy, has nothing to do here: UTF-8 has none, and no step makes any.
#include "text/prompt.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "text/html.h"
#include "text/mojibake.h"

namespace zoetrope::text {

namespace {

// Longer lines are cut here before repair, as ftfy does.
constexpr size_t kMaxSegment = 1'000'000;

icu::UnicodeString to_utf16(std::u32string_view text) {
  static_assert(sizeof(char32_t) == sizeof(UChar32));
  return icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                       static_cast<int32_t>(text.size()));
}

std::u32string from_utf16(const icu::UnicodeString& text) {
  std::u32string out;
  out.reserve(static_cast<size_t>(text.length()));
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    out.push_back(static_cast<char32_t>(text.char32At(i)));
  }
  return out;
}

std::u32string normalize(std::u32string_view text, const icu::Normalizer2& form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeString result = form.normalize(to_utf16(text), status);
  if (U_FAILURE(status)) fail("ICU cannot normalise the prompt: {}", u_errorName(status));
  return from_utf16(result);
}

// NFC of Unicode 14, that of the recorded reference's Python 3.11: what Unicode 15 added is left where it stands.
const icu::Normalizer2& nfc() {
  static const icu::FilteredNormalizer2 filtered = [] {
    UErrorCode status = U_ZERO_ERROR;
    static const icu::UnicodeSet unicode14(u"[:Age=14.0:]", status);
    const icu::Normalizer2* full = icu::Normalizer2::getNFCInstance(status);
    if (U_FAILURE(status)) fail("ICU has no data for NFC: {}", u_errorName(status));
    return icu::FilteredNormalizer2(*full, unicode14);
  }();
  return filtered;
}

struct Ligature {
  char32_t from;
  std::u32string_view to;
};

// Ligatures of Latin letters, and digraphs that old encodings had as one character.
constexpr std::array<Ligature, 22> kLigatures = {{
    {U'Ĳ', U"IJ"},  {U'ĳ', U"ij"},  {U'ŉ', U"ʼn"}, {U'Ǳ', U"DZ"}, {U'ǲ', U"Dz"}, {U'ǳ', U"dz"},
    {U'Ǆ', U"DŽ"},  {U'ǅ', U"Dž"},  {U'ǆ', U"dž"}, {U'Ǉ', U"LJ"}, {U'ǈ', U"Lj"}, {U'ǉ', U"lj"},
    {U'Ǌ', U"NJ"},  {U'ǋ', U"Nj"},  {U'ǌ', U"nj"}, {U'ﬀ', U"ff"}, {U'ﬁ', U"fi"}, {U'ﬂ', U"fl"},
    {U'ﬃ', U"ffi"}, {U'ﬄ', U"ffl"}, {U'ﬅ', U"ſt"}, {U'ﬆ', U"st"},
}};

std::u32string fix_latin_ligatures(const std::u32string& text) {
  std::u32string out;
  for (char32_t c : text) {
    const auto found = std::find_if(kLigatures.begin(), kLigatures.end(),
                                    [&](const Ligature& ligature) { return ligature.from == c; });
    if (found == kLigatures.end()) {
      out.push_back(c);
    } else {
      out += found->to;
    }
  }
  return out;
}

// Half- and full-width forms (U+FF01 to U+FFEF) and the ideographic space.
std::u32string fix_character_width(const std::u32string& text) {
  std::u32string out;
  for (char32_t c : text) {
    if (c == 0x3000) {
      out.push_back(U' ');
    } else if (c >= 0xFF01 && c <= 0xFFEF) {
      UErrorCode status = U_ZERO_ERROR;
      const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
      if (U_FAILURE(status)) fail("ICU has no data for NFKC: {}", u_errorName(status));
      out += normalize({&c, 1}, *nfkc);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::u32string uncurl_quotes(std::u32string text) {
  for (char32_t& c : text) {
    if (c >= 0x201C && c <= 0x201F) c = U'"';
    if (c == 0x02BC || (c >= 0x2018 && c <= 0x201B)) c = U'\'';
  }
  return text;
}

std::u32string fix_line_breaks(const std::u32string& text) {
  std::u32string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out.push_back(c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? U'\n' : c);
  }
  return out;
}

// Python's \d over Unicode 14.
bool is_decimal_digit(char32_t c) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER && age[0] <= 14;
}

// "ESC [ numbers letter": colours and cursor movements.
std::u32string remove_terminal_escapes(const std::u32string& text) {
  std::u32string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x1B && i + 1 < text.size() && text[i + 1] == '[') {
      size_t end = i + 2;
      while (end < text.size() && (text[end] == ';' || is_decimal_digit(text[end]))) ++end;
      const char32_t last = end < text.size() ? text[end] : 0;
      if ((last >= 'a' && last <= 'z') || (last >= 'A' && last <= 'Z')) {
        i = end;
        continue;
      }
    }
    out.push_back(text[i]);
  }
  return out;
}

std::u32string remove_control_chars(std::u32string text) {
  std::erase_if(text, [](char32_t c) {
    return c <= 0x08 || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || (c >= 0x206A && c <= 0x206F) ||
           c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
  });
  return text;
}

enum class HtmlText { kNo, kYes };  // yes: the text holds tags, so its references are left for a reader of HTML

// Every repair in turn, again and again until nothing changes.
std::u32string fix_segment(std::u32string text, HtmlText html) {
  for (;;) {
    std::u32string fixed = html == HtmlText::kNo ? unescape_html_strictly(text) : text;
    fixed = fix_encoding(std::move(fixed));
    fixed = fix_c1_controls(std::move(fixed));
    fixed = fix_latin_ligatures(fixed);
    fixed = fix_character_width(fixed);
    fixed = uncurl_quotes(std::move(fixed));
    fixed = fix_line_breaks(fixed);
    fixed = remove_terminal_escapes(fixed);
    fixed = remove_control_chars(std::move(fixed));
    fixed = normalize(fixed, nfc());
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

// Line by line; a "<" anywhere turns HTML references off for its line and all that follow.
std::u32string fix_text(const std::u32string& text) {
  std::u32string out;
  HtmlText html = HtmlText::kNo;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find(U'\n', begin);
    size_t end = newline == std::u32string::npos ? text.size() : newline + 1;
    end = std::min(end, begin + kMaxSegment);
    std::u32string segment = text.substr(begin, end - begin);
    if (segment.find(U'<') != std::u32string::npos) html = HtmlText::kYes;
    out += fix_segment(std::move(segment), html);
    begin = end;
  }
  return out;
}

bool is_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

std::u32string collapse_spaces(std::u32string_view text) {
  std::u32string out;
  for (char32_t c : text) {
    if (!is_space(c)) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(U' ');
    }
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

std::string clean_prompt(std::string_view utf8) {
  const std::u32string fixed = fix_text(decode_utf8_or_fail(utf8, "the prompt"));
  return encode_utf8(collapse_spaces(unescape_html(unescape_html(fixed))));
}

}  // namespace zoetrope::text
