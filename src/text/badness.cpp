// The heuristic of ftfy 6.3.1 (ftfy/badness.py): a list of unlikely neighbours, by character class. The list is
// restated here rule by rule; the classes are in char_classes.inc.
#include "text/badness.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace zoetrope::text {

namespace {

// Classes beyond the table, above its bits.
constexpr uint32_t kAsciiLower = 1U << 24;
constexpr uint32_t kAsciiLetter = 1U << 25;
constexpr uint32_t kNotAsciiLetter = 1U << 26;
constexpr uint32_t kSpace = 1U << 27;
constexpr uint32_t kWord = 1U << 28;
constexpr uint32_t kNotNewline = 1U << 29;
static_assert(kUtf8ContinuationStrict < kAsciiLower);

// One place of a rule: a character of any of the classes, or one of those listed.
struct Place {
  uint32_t classes = 0;
  std::u32string_view chars = {};
  constexpr bool used() const { return classes != 0 || !chars.empty(); }
  bool holds(char32_t c, uint32_t c_classes) const {
    return (classes & c_classes) != 0 || chars.find(c) != std::u32string_view::npos;
  }
};

constexpr size_t kMaxPlaces = 7;
using Rule = std::array<Place, kMaxPlaces>;

constexpr uint32_t kAccented = kLowerAccented | kUpperAccented;
constexpr uint32_t kPunctuation = kStartPunctuation | kEndPunctuation;
constexpr uint32_t kSymbols = kAccented | kBox | kPunctuation | kCurrency | kNumeric;
constexpr uint32_t kMiddle1251 = kC1 | kBad | kPunctuation | kCurrency;
constexpr Place kArabicLead = {0, U"ØÙ"};
constexpr Place kArabicTail = {kCommon | kCurrency | kBad | kNumeric | kStartPunctuation, U"ŸŠ®°µ»"};
constexpr Place kCyrillicLead = {0, U"ВГРС"};
constexpr Place kGreekLead = {0, U"ΒΓΞΟ"};
constexpr Place kALead = {0, U"ÃÂ"};
constexpr Place kBlank = {0, U" "};

constexpr Rule kRules[] = {
    // Neighbours that text hardly has, in any encoding.
    Rule{{{kC1}}},
    Rule{{{kBad | kSymbols | kLaw}, {kBad}}},
    Rule{{{kAsciiLetter}, {kLowerCommon | kUpperCommon}, {kBad}}},
    Rule{{{kBad}, {kSymbols | kLaw}}},
    Rule{{{kLowerAccented | kLowerCommon | kBox | kEndPunctuation | kCurrency | kNumeric}, {kUpperAccented}}},
    Rule{{{kBox | kEndPunctuation | kCurrency | kNumeric}, {kLowerAccented}}},
    Rule{{{kLowerAccented | kBox | kEndPunctuation}, {kCurrency}}},
    Rule{{{kSpace}, {kUpperAccented}, {kCurrency}}},
    Rule{{{kUpperAccented | kBox}, {kNumeric | kLaw}}},
    Rule{{{kAccented | kBox | kCurrency | kEndPunctuation}, {kStartPunctuation}, {kNumeric}}},
    Rule{{{kAccented | kCurrency | kNumeric | kBox | kLaw}, {kEndPunctuation}, {kStartPunctuation}}},
    Rule{{{kCurrency | kNumeric | kBox}, {kStartPunctuation}}},
    Rule{{{kAsciiLower}, {kUpperAccented}, {kStartPunctuation | kCurrency}}},
    Rule{{{kBox}, {kKaomoji}}},
    Rule{{{kAccented | kCurrency | kNumeric | kPunctuation | kLaw}, {kBox}}},
    Rule{{{kBox}, {kEndPunctuation}}},
    Rule{{{kAccented}, {kPunctuation}, {kWord}}},
    // The ligature before anything but a plain letter, and a degree sign after a capital.
    Rule{{{0, U"Œœ"}, {kNotAsciiLetter}}},
    Rule{{{kUpperAccented}, {0, U"°"}}},
    // UTF-8 read as Windows-1252: two-byte sequences; superscripts; Arabic (two letters); South Asian letters.
    Rule{{{0, U"ÂÃÎÐ"}, {kPunctuation, U"€œŠš¢£Ÿž\u00A0\u00AD®©°·»–—´"}}},
    Rule{{{0, U"×"}, {0, U"²³"}}},
    Rule{{kArabicLead, kArabicTail, kArabicLead, kArabicTail}},
    Rule{{{0, U"à"}, {0, U"²µ¹¼½¾"}}},
    // UTF-8 read as MacRoman.
    Rule{{{0, U"√"}, {0, U"±∂†≠®™´≤≥¥µø"}}},
    Rule{{{0, U"≈"}, {0, U"°¢"}}},
    Rule{{{0, U"‚"}, {0, U"Ä"}, {0, U"ìîïòôúùû†°¢π"}}},
    Rule{{{0, U"‚"}, {0, U"âó"}, {0, U"àä°ê"}}},
    // Read as Windows-1251: general punctuation; Latin-1 and Cyrillic; the latter twice over.
    Rule{{{0, U"в"}, {0, U"Ђ"}}},
    Rule{{kCyrillicLead, {kMiddle1251, U"°µ"}, kCyrillicLead}},
    Rule{{{0, U"Г"}, {0, U"ў"}, {0, U"В"}, {0, U"Ђ"}, {0, U"В"}, {kNotNewline}, {kAsciiLetter, U" "}}},
    // Windows-1252 again: a with accents and the no-break space.
    Rule{{{0, U"Ã"}, {0, U"\u00A0¡"}}},
    Rule{{{kAsciiLower}, kALead, kBlank}},
    Rule{{{kAsciiLower}, {kSpace}, kALead, kBlank}},
    Rule{{{kAsciiLower | kEndPunctuation, U".,?!"}, {0, U"Â"}, {kPunctuation, U" "}}},
    // Windows-1253 and Windows-1257.
    Rule{{{0, U"β"}, {0, U"€"}, {0, U"™\u00A0Ά\u00AD®°"}}},
    Rule{{kGreekLead, {kMiddle1251, U"°"}, kGreekLead}},
    Rule{{{0, U"ā"}, {0, U"€"}}},
};

// Python's \w over Unicode 14, the version behind the recorded reference.
bool is_word(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  UVersionInfo age;
  u_charAge(code, age);
  return c == '_' || (age[0] <= 14 && (U_GET_GC_MASK(code) & (U_GC_L_MASK | U_GC_N_MASK)) != 0);
}

// Python's \s, which counts the separators U+001C to U+001F in.
bool is_space(char32_t c) {
  return (c >= 0x1C && c <= 0x1F) || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE);
}

uint32_t all_classes(char32_t c) {
  const bool lower = c >= 'a' && c <= 'z';
  const bool letter = lower || (c >= 'A' && c <= 'Z');
  return char_classes(c) | (lower ? kAsciiLower : 0U) | (letter ? kAsciiLetter : kNotAsciiLetter) |
         (is_space(c) ? kSpace : 0U) | (is_word(c) ? kWord : 0U) | (c != '\n' ? kNotNewline : 0U);
}

}  // namespace

uint32_t char_classes(char32_t c) {
  const auto* range = std::lower_bound(std::begin(kCharClasses), std::end(kCharClasses), c,
                                       [](const CharClassRange& r, char32_t code) { return r.last < code; });
  return range != std::end(kCharClasses) && range->first <= c ? range->classes : 0;
}

bool looks_mistaken(std::u32string_view text) {
  std::vector<uint32_t> classes(text.size());
  std::transform(text.begin(), text.end(), classes.begin(), all_classes);
  const auto place_holds = [&](const Place& place, size_t i) {
    return i < text.size() && place.holds(text[i], classes[i]);
  };
  const auto rule_holds = [&](const Rule& rule, size_t i) {
    for (const Place& place : rule) {
      if (!place.used()) return true;
      if (!place_holds(place, i++)) return false;
    }
    return true;
  };
  // At the very beginning no lower-case letter is needed before it.
  if (place_holds(kALead, 0) && place_holds(kBlank, 1)) return true;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const Rule& rule : kRules) {
      if (rule_holds(rule, i)) return true;
    }
  }
  return false;
}

}  // namespace zoetrope::text
