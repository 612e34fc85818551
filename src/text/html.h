// HTML character references to characters, by the two rule sets that prompt cleaning uses. Not a parser of HTML.
#pragma once

#include <string>
#include <string_view>

namespace zoetrope::text {

// As browsers do, and Python's html.unescape: numbers, names with and without semicolon, the longest name that fits.
std::u32string unescape_html(std::u32string_view text);

// As ftfy does: only what ends in a semicolon and is wholly understood, and names in capitals too (&NTILDE;).
std::u32string unescape_html_strictly(std::u32string_view text);

}  // namespace zoetrope::text
