// The rules GB3 to GB13 of UAX #29 over ICU's character properties. ICU's own break iterator is not used: it needs
// locale data and a mutable object per text, and ICU 72 does not know rule GB9c (Unicode 15.1), which the reference
// follows.
#include "text/grapheme.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <array>

namespace zoetrope::text {

namespace {

int break_class(char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK); }

bool pictographic(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC); }

// Indic_Conjunct_Break: the viramas that link, and the consonants of the same six scripts.
constexpr std::array<char32_t, 6> kLinkers = {0x094D, 0x09CD, 0x0ACD, 0x0B4D, 0x0C4D, 0x0D4D};

bool is_linker(char32_t c) { return std::find(kLinkers.begin(), kLinkers.end(), c) != kLinkers.end(); }

bool is_linked_consonant(char32_t c) {
  if (c < 0x0900 || c > 0x0D7F) return false;
  UErrorCode status = U_ZERO_ERROR;
  switch (uscript_getScript(static_cast<UChar32>(c), &status)) {
    case USCRIPT_DEVANAGARI:
    case USCRIPT_BENGALI:
    case USCRIPT_GUJARATI:
    case USCRIPT_ORIYA:
    case USCRIPT_TELUGU:
    case USCRIPT_MALAYALAM:
      return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_INDIC_SYLLABIC_CATEGORY) == U_INSC_CONSONANT;
    default:
      return false;
  }
}

bool is_control(int c) { return c == U_GCB_CONTROL || c == U_GCB_CR || c == U_GCB_LF; }

bool hangul_joins(int before, int after) {
  switch (before) {
    case U_GCB_L:
      return after == U_GCB_L || after == U_GCB_V || after == U_GCB_LV || after == U_GCB_LVT;
    case U_GCB_LV:
    case U_GCB_V:
      return after == U_GCB_V || after == U_GCB_T;
    case U_GCB_LVT:
    case U_GCB_T:
      return after == U_GCB_T;
    default:
      return false;
  }
}

}  // namespace

size_t grapheme_end(std::u32string_view text, size_t begin) {
  size_t flags = 0;                          // regional indicators since the last break between two
  bool picture = pictographic(text[begin]);  // ExtPict Extend* so far
  bool picture_joiner = false;               // … and then ZWJ
  bool consonant = is_linked_consonant(text[begin]);
  bool linked = false;  // consonant [extend linker]* with a linker among them
  int before = break_class(text[begin]);
  if (before == U_GCB_REGIONAL_INDICATOR) flags = 1;
  size_t i = begin + 1;
  for (; i < text.size(); ++i) {
    const char32_t c = text[i];
    const int after = break_class(c);
    bool joins = false;
    if (before == U_GCB_CR && after == U_GCB_LF) {
      joins = true;
    } else if (is_control(before) || is_control(after)) {
      joins = false;
    } else {
      joins = hangul_joins(before, after) || after == U_GCB_EXTEND || after == U_GCB_ZWJ ||
              after == U_GCB_SPACING_MARK || before == U_GCB_PREPEND || (linked && is_linked_consonant(c)) ||
              (picture_joiner && pictographic(c)) ||
              (before == U_GCB_REGIONAL_INDICATOR && after == U_GCB_REGIONAL_INDICATOR && flags % 2 == 1);
    }
    if (!joins) break;
    flags = after == U_GCB_REGIONAL_INDICATOR ? flags + 1 : 0;
    const bool transparent = after == U_GCB_EXTEND || after == U_GCB_ZWJ;
    picture_joiner = picture && after == U_GCB_ZWJ;
    picture = pictographic(c) || (picture && after == U_GCB_EXTEND);
    linked = consonant && transparent && (linked || is_linker(c));
    consonant = is_linked_consonant(c) || (consonant && transparent);
    before = after;
  }
  return i;
}

}  // namespace zoetrope::text
