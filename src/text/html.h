// HTML character references to characters, by the two rule sets that prompt cleaning uses. Not a parser of HTML.
#pragma once

#include <unicode/unistr.h>

namespace zoetrope::text {

// As browsers do, and Python's html.unescape: numbers, names with and without semicolon, the longest name that fits.
icu::UnicodeString unescape_html(const icu::UnicodeString& text);

// As ftfy does: only what ends in a semicolon and is wholly understood, and names in capitals too (&NTILDE;).
icu::UnicodeString unescape_html_strictly(const icu::UnicodeString& text);

}  // namespace zoetrope::text
