// Expected values: Python 3.11's html.unescape and ftfy 6.3.1's fixes.unescape_html.
#include "text/html.h"

#include <gmock/gmock.h>

namespace zoetrope::text {
namespace {

struct Case {
  icu::UnicodeString text, browser, strict;
};

TEST(Html, BothRuleSets) {
  const Case cases[] = {
      {u"a &amp; b &lt;i&gt;", u"a & b <i>", u"a & b <i>"},
      {u"&amp;lt;", u"&lt;", u"&lt;"},
      // Without semicolon, and the longest name that fits.
      {u"&notit; &ampx &lt", u"¬it; &x <", u"&notit; &ampx &lt"},
      {u"&notanentity;", u"¬anentity;", u"&notanentity;"},
      {u"&nosuch; & &; &#; &#x;", u"&nosuch; & &; &#; &#x;", u"&nosuch; & &; &#; &#x;"},
      // Capitals are ftfy's own.
      {u"P&EACUTE;REZ &SZLIG;", u"P&EACUTE;REZ &SZLIG;", u"PÉREZ SS"},
      {u"&nTILDE;", u"&nTILDE;", u"&nTILDE;"},
      {u"&#233;&#xe9;&#XE9;&#0233;", u"éééé", u"éééé"},
      {u"&#65 &#x41g;", u"A Ag;", u"&#65 &#x41g;"},
      // Windows-1252 in disguise, out of range, surrogates, zero, noncharacters and controls.
      {u"&#133;&#x80;&#129;", u"…€\u0081", u"…€\u0081"},
      {u"&#x110000;&#xD800;&#0;", u"\uFFFD\uFFFD\uFFFD", u"\uFFFD\uFFFD\uFFFD"},
      {u"[&#xFFFE;&#1;&#xFDD0;&#127;&#11;]", u"[]", u"[]"},
      {u"&#13;&#9;", u"\r\t", u"\r\t"},
      {u"&#99999999999999999999;", u"\uFFFD", u"\uFFFD"},
      // A semicolon that is written as a reference stays one for ftfy.
      {u"&#59;", u";", u"&#59;"},
      {u"&NotEqualTilde;", u"\u2242\u0338", u"\u2242\u0338"},
      {u"&CounterClockwiseContourIntegral;", u"∳", u"&CounterClockwiseContourIntegral;"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(unescape_html(c.text), c.browser);
    EXPECT_EQ(unescape_html_strictly(c.text), c.strict);
  }
}

TEST(Html, OnePassOnly) { EXPECT_EQ(unescape_html(u"&amp;amp;amp;"), icu::UnicodeString(u"&amp;amp;")); }

}  // namespace
}  // namespace zoetrope::text
