// ftfy.fix_text (6.3.1, default settings), then html.unescape twice, then white space, in the order of diffusers'
// prompt_clean. Repair of surrogates, a step of ftfy, has nothing to do here: UTF-8 has none, and no step makes any.
#include "text/prompt.h"

#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/html.h"
#include "text/mojibake.h"
#include "text/regex.h"

namespace zoetrope::text {

namespace {

using icu::UnicodeString;

// Longer lines are repaired in segments of this many characters, as ftfy does.
constexpr int32_t kMaxSegment = 1'000'000;

UnicodeString normalize(const UnicodeString& text, const icu::Normalizer2& form) {
  UErrorCode status = U_ZERO_ERROR;
  UnicodeString result = form.normalize(text, status);
  if (U_FAILURE(status)) fail("ICU cannot normalise the prompt: {}", u_errorName(status));
  return result;
}

// NFC of Unicode 14, that of the recorded reference's Python 3.11: characters that Unicode 15 added are left as they
// are.
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

// Ligatures of Latin letters, and digraphs that old encodings had as one character.
constexpr std::pair<char16_t, const char16_t*> kLigatures[] = {
    {u'Ĳ', u"IJ"},  {u'ĳ', u"ij"},  {u'ŉ', u"ʼn"}, {u'Ǳ', u"DZ"}, {u'ǲ', u"Dz"}, {u'ǳ', u"dz"},
    {u'Ǆ', u"DŽ"},  {u'ǅ', u"Dž"},  {u'ǆ', u"dž"}, {u'Ǉ', u"LJ"}, {u'ǈ', u"Lj"}, {u'ǉ', u"lj"},
    {u'Ǌ', u"NJ"},  {u'ǋ', u"Nj"},  {u'ǌ', u"nj"}, {u'ﬀ', u"ff"}, {u'ﬁ', u"fi"}, {u'ﬂ', u"fl"},
    {u'ﬃ', u"ffi"}, {u'ﬄ', u"ffl"}, {u'ﬅ', u"ſt"}, {u'ﬆ', u"st"},
};

UnicodeString fix_latin_ligatures(UnicodeString text) {
  for (const auto& [from, to] : kLigatures) text.findAndReplace(from, to);
  return text;
}

// Half- and full-width forms and the ideographic space.
UnicodeString fix_character_width(const UnicodeString& text) {
  static const Regex forms(R"([\uFF01-\uFFEF\u3000])");
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(status);
  if (U_FAILURE(status)) fail("ICU has no data for NFKC: {}", u_errorName(status));
  return forms.replace(text, [&](const UnicodeString& form) { return normalize(form, *nfkc); });
}

UnicodeString uncurl_quotes(const UnicodeString& text) {
  static const Regex doubled(R"([\u201C-\u201F])"), single(R"([\u02BC\u2018-\u201B])");
  return single.replace(doubled.replace(text, u"\""), u"'");
}

UnicodeString fix_line_breaks(const UnicodeString& text) {
  static const Regex breaks(R"(\r\n|[\r\u2028\u2029\x85])");
  return breaks.replace(text, u"\n");
}

// "ESC [ numbers letter": colours and cursor movements. The digits are Python's \d over Unicode 14.
UnicodeString remove_terminal_escapes(const UnicodeString& text) {
  static const Regex escapes(R"(\x1B\[[;[\p{Nd}&&[\p{Age=14.0}]]]*[A-Za-z])");
  return escapes.replace(text, u"");
}

UnicodeString remove_control_chars(const UnicodeString& text) {
  static const Regex controls(R"([\x00-\x08\x0B\x0E-\x1F\x7F\u206A-\u206F\uFEFF\uFFF9-\uFFFC])");
  return controls.replace(text, u"");
}

enum class HtmlText { kNo, kYes };  // yes: the text holds tags, so its references are left for a reader of HTML

// Every repair in turn, again and again until nothing changes.
UnicodeString fix_segment(UnicodeString text, HtmlText html) {
  for (;;) {
    UnicodeString fixed = html == HtmlText::kNo ? unescape_html_strictly(text) : text;
    fixed = fix_c1_controls(fix_encoding(std::move(fixed)));
    fixed = fix_character_width(fix_latin_ligatures(std::move(fixed)));
    fixed = remove_terminal_escapes(fix_line_breaks(uncurl_quotes(fixed)));
    fixed = normalize(remove_control_chars(fixed), nfc());
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

// Line by line; a "<" anywhere turns HTML references off for its line and all that follow.
UnicodeString fix_text(const UnicodeString& text) {
  UnicodeString out;
  HtmlText html = HtmlText::kNo;
  for (int32_t begin = 0; begin < text.length();) {
    const int32_t newline = text.indexOf(u'\n', begin);
    int32_t end = newline < 0 ? text.length() : newline + 1;
    if (end - begin > kMaxSegment) end = std::min(end, text.moveIndex32(begin, kMaxSegment));
    UnicodeString segment = text.tempSubStringBetween(begin, end);
    if (segment.indexOf(u'<') >= 0) html = HtmlText::kYes;
    out += fix_segment(std::move(segment), html);
    begin = end;
  }
  return out;
}

UnicodeString collapse_spaces(const UnicodeString& text) {
  static const Regex spaces(R"(\p{White_Space}+)");
  UnicodeString out = spaces.replace(text, u" ");
  if (out.startsWith(u" ")) out.remove(0, 1);
  if (out.endsWith(u" ")) out.truncate(out.length() - 1);
  return out;
}

}  // namespace

std::string clean_prompt(std::string_view utf8) {
  decode_utf8_or_fail(utf8, "the prompt");
  std::string clean;
  return collapse_spaces(unescape_html(unescape_html(fix_text(to_utf16(utf8))))).toUTF8String(clean);
}

std::string_view weighted_part(std::string_view prompt) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr double kMostWeight = 10;  // "(released: 1984)" is none
  for (size_t end = prompt.find(')'); end != std::string_view::npos; end = prompt.find(')', end + 1)) {
    const size_t colon = prompt.rfind(':', end);
    if (colon == std::string_view::npos) continue;
    const std::string_view weight = prompt.substr(colon + 1, end - colon - 1);
    const size_t begin = prompt.rfind('(', colon);
    if (begin == std::string_view::npos || prompt.find(')', begin) != end) continue;
    const std::string_view words = prompt.substr(begin + 1, colon - begin - 1);
    const bool number = weight.find_first_of(kDigits) != std::string_view::npos &&
                        weight.find_first_not_of("0123456789. ") == std::string_view::npos &&
                        std::strtod(std::string(weight).c_str(), nullptr) <= kMostWeight;
    if (number && !words.empty() && kDigits.find(words.back()) == std::string_view::npos)
      return prompt.substr(begin, end - begin + 1);
  }
  return {};
}

}  // namespace zoetrope::text
