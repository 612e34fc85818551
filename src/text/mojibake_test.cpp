// Expected values: ftfy 6.3.1 (fix_encoding, badness.is_bad) unless a comment says otherwise.
#include "text/mojibake.h"

#include <gmock/gmock.h>

#include "base/utf8.h"
#include "text/badness.h"
#include "text/encodings.h"

namespace zoetrope::text {
namespace {

TEST(Badness, SignsOfMistakenText) {
  for (const char32_t* text : {U"Ã©", U"â€™", U"a\u0085", U"Ã la", U"¦¦", U"вЂ”", U"âœ”", U"Â ", U"ГўВЂВ™ "}) {
    EXPECT_TRUE(looks_mistaken(text)) << encode_utf8(text);
  }
  for (const char32_t* text :
       {U"", U"plain", U"café", U"naïve “quoted”", U"Größe", U"кошка", U"猫", U"ÃÂ", U"œuvre", U"x Ã", U"a\nb"}) {
    EXPECT_FALSE(looks_mistaken(text)) << encode_utf8(text);
  }
}

TEST(Mojibake, Repairs) {
  const std::pair<const char32_t*, const char32_t*> cases[] = {
      {U"cafÃ©", U"café"},
      {U"âœ” No problems", U"✔ No problems"},
      {U"ÃƒÂ¶", U"ö"},
      // A space that was a no-break space, as a word and inside one; Portuguese contractions.
      {U"voilÃ le travail", U"voilà le travail"},
      {U"Ã la", U"à la"},
      {U"Ã quele", U"àquele"},
      // Bytes lost on the way.
      {U"â€œlikeâ€\uFFFD", U"“like\uFFFD"},
      // Right text with a mistaken part.
      {U"猫 cafÃ©", U"猫 café"},
      // C1 controls of Windows-1252, one of them without a meaning there.
      {U"a\u0085", U"a…"},
      {U"\u0081\u0099", U"\u0081™"},
      {U"плохо", U"плохо"},
      {U"РїР»РѕС…Рѕ", U"плохо"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(fix_encoding(text), expected) << encode_utf8(text);
}

TEST(Encodings, EveryByteOfEveryEncodingComesBack) {
  for (const OneByteEncoding& encoding : suspected_encodings()) {
    // The characters of all bytes, found by asking which code point gives which byte.
    size_t found = 0;
    for (char32_t c = 0; c <= 0xFFFF; ++c) {
      if (encoding.encode({&c, 1})) ++found;
    }
    EXPECT_EQ(found, 256U) << encoding.name();
  }
}

TEST(Encodings, VariantsOfUtf8) {
  using std::string_literals::operator""s;
  EXPECT_EQ(decode_utf8_variants("a\xC0\x80z"), U"a\0z"s);
  EXPECT_EQ(decode_utf8_variants("\xED\xA0\xBD\xED\xB2\xA9"), U"💩"s);
  EXPECT_EQ(decode_utf8_variants("\xED\x95\x9C"), U"한"s);
  for (const char* bad :
       {"\xC0", "\xC0x", "\xED\xA0\x80", "\xED\xB2\xA9\xED\xA0\xBD", "\xED\xA0\xBD\xED\xB2", "\xFF"}) {
    EXPECT_FALSE(decode_utf8_variants(bad));
  }
  // A closing newline is taken for the last byte, as the reference has it.
  EXPECT_EQ(decode_utf8_variants("\xC0\n"), U"\0"s);
  EXPECT_FALSE(decode_utf8_variants("\xC0\n\n"));
}

}  // namespace
}  // namespace zoetrope::text
