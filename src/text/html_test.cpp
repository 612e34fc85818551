// Expected values: Python 3.11's html.unescape and ftfy 6.3.1's fixes.unescape_html.
#include "text/html.h"

#include <gmock/gmock.h>

namespace zoetrope::text {
namespace {

struct Case {
  std::u32string_view text, browser, strict;
};

TEST(Html, BothRuleSets) {
  const Case cases[] = {
      {U"a &amp; b &lt;i&gt;", U"a & b <i>", U"a & b <i>"},
      {U"&amp;lt;", U"&lt;", U"&lt;"},
      // Without semicolon, and the longest name that fits.
      {U"&notit; &ampx &lt", U"¬it; &x <", U"&notit; &ampx &lt"},
      {U"&notanentity;", U"¬anentity;", U"&notanentity;"},
      {U"&nosuch; & &; &#; &#x;", U"&nosuch; & &; &#; &#x;", U"&nosuch; & &; &#; &#x;"},
      // Capitals are ftfy's own.
      {U"P&EACUTE;REZ &SZLIG;", U"P&EACUTE;REZ &SZLIG;", U"PÉREZ SS"},
      {U"&nTILDE;", U"&nTILDE;", U"&nTILDE;"},
      {U"&#233;&#xe9;&#XE9;&#0233;", U"éééé", U"éééé"},
      {U"&#65 &#x41g;", U"A Ag;", U"&#65 &#x41g;"},
      // Windows-1252 in disguise, out of range, surrogates, zero, noncharacters and controls.
      {U"&#133;&#x80;&#129;", U"…€\u0081", U"…€\u0081"},
      {U"&#x110000;&#xD800;&#0;", U"\uFFFD\uFFFD\uFFFD", U"\uFFFD\uFFFD\uFFFD"},
      {U"[&#xFFFE;&#1;&#xFDD0;&#127;&#11;]", U"[]", U"[]"},
      {U"&#13;&#9;", U"\r\t", U"\r\t"},
      {U"&#99999999999999999999;", U"\uFFFD", U"\uFFFD"},
      // A semicolon that is written as a reference stays one for ftfy.
      {U"&#59;", U";", U"&#59;"},
      {U"&NotEqualTilde;", U"\u2242\u0338", U"\u2242\u0338"},
      {U"&CounterClockwiseContourIntegral;", U"∳", U"&CounterClockwiseContourIntegral;"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(unescape_html(c.text), c.browser);
    EXPECT_EQ(unescape_html_strictly(c.text), c.strict);
  }
}

TEST(Html, OnePassOnly) { EXPECT_EQ(unescape_html(U"&amp;amp;amp;"), U"&amp;amp;"); }

}  // namespace
}  // namespace zoetrope::text
