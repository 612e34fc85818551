// Expected values: ftfy 6.3.1 (fix_encoding, badness.is_bad) and Python 3.11 unless a comment says otherwise.
#include "text/mojibake.h"

#include <gmock/gmock.h>

namespace zoetrope::text {
namespace {

std::string shown(const icu::UnicodeString& text) {
  std::string utf8;
  return text.toUTF8String(utf8);
}

TEST(Badness, SignsOfMistakenText) {
  for (const char16_t* text : {u"Ã©", u"â€™", u"a\u0085", u"Ã la", u"¦¦", u"вЂ”", u"âœ”", u"Â ", u"ГўВЂВ™ "}) {
    EXPECT_TRUE(looks_like_mojibake(text)) << shown(text);
  }
  for (const char16_t* text :
       {u"", u"plain", u"café", u"naïve “quoted”", u"Größe", u"кошка", u"猫", u"ÃÂ", u"œuvre", u"x Ã", u"a\nb"}) {
    EXPECT_FALSE(looks_like_mojibake(text)) << shown(text);
  }
}

TEST(Mojibake, Repairs) {
  const std::pair<const char16_t*, const char16_t*> cases[] = {
      {u"cafÃ©", u"café"},
      {u"âœ” No problems", u"✔ No problems"},
      {u"ÃƒÂ¶", u"ö"},
      // A space that was a no-break space, as a word and inside one; Portuguese contractions.
      {u"voilÃ le travail", u"voilà le travail"},
      {u"Ã la", u"à la"},
      {u"Ã quele", u"àquele"},
      // Bytes lost on the way.
      {u"â€œlikeâ€\uFFFD", u"“like\uFFFD"},
      // Right text with a mistaken part.
      {u"猫 cafÃ©", u"猫 café"},
      // C1 controls of Windows-1252, one of them without a meaning there.
      {u"a\u0085", u"a…"},
      {u"\u0081\u0099", u"\u0081™"},
      {u"плохо", u"плохо"},
      {u"РїР»РѕС…Рѕ", u"плохо"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(shown(fix_encoding(text)), shown(expected)) << shown(text);
}

// The characters of the bytes 0x80 to 0xFF as Python has them, holes filled as in Latin-1.
TEST(Encodings, EveryByteOfEveryEncodingIsPythons) {
  const icu::UnicodeString upper_halves[] = {
      // clang-format off
      u"\u0080\u0081\u0082\u0083\u0084\u0085\u0086\u0087\u0088\u0089\u008A\u008B\u008C\u008D\u008E\u008F\u0090\u0091\u0092\u0093\u0094\u0095\u0096\u0097\u0098\u0099\u009A\u009B\u009C\u009D\u009E\u009F\u00A0¡¢£¤¥¦§¨©ª«¬\u00AD®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ",
      u"€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008DŽ\u008F\u0090‘’“”•\u2013\u2014˜™š›œ\u009DžŸ\u00A0¡¢£¤¥¦§¨©ª«¬\u00AD®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ",
      u"ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•\u2013\u2014\u0098™љ›њќћџ\u00A0ЎўЈ¤Ґ¦§Ё©Є«¬\u00AD®Ї°±Ііґµ¶·ё№є»јЅѕїАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюя",
      u"€\u0081‚\u0083„…†‡\u0088‰Š‹ŚŤŽŹ\u0090‘’“”•\u2013\u2014\u0098™š›śťžź\u00A0ˇ˘Ł¤Ą¦§¨©Ş«¬\u00AD®Ż°±˛ł´µ¶·¸ąş»Ľ˝ľżŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ˙",
      u"€\u0081‚ƒ„…†‡\u0088‰\u008A‹\u008C\u008D\u008E\u008F\u0090‘’“”•\u2013\u2014\u0098™\u009A›\u009C\u009D\u009E\u009F\u00A0΅Ά£¤¥¦§¨©ª«¬\u00AD®\u2015°±²³΄µ¶·ΈΉΊ»Ό½ΎΏΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡÒΣΤΥΦΧΨΩΪΫάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώÿ",
      u"€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008D\u008E\u008F\u0090‘’“”•\u2013\u2014˜™š›œ\u009D\u009EŸ\u00A0¡¢£¤¥¦§¨©ª«¬\u00AD®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏĞÑÒÓÔÕÖ×ØÙÚÛÜİŞßàáâãäåæçèéêëìíîïğñòóôõö÷øùúûüışÿ",
      u"€\u0081‚\u0083„…†‡\u0088‰\u008A‹\u008C¨ˇ¸\u0090‘’“”•\u2013\u2014\u0098™\u009A›\u009C¯˛\u009F\u00A0¡¢£¤¥¦§Ø©Ŗ«¬\u00AD®Æ°±²³´µ¶·ø¹ŗ»¼½¾æĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻŠŃŅÓŌÕÖ×ŲŁŚŪÜŻŽßąįāćäåęēčéźėģķīļšńņóōõö÷ųłśūüżž˙",
      u"\u0080\u0081\u0082\u0083\u0084\u0085\u0086\u0087\u0088\u0089\u008A\u008B\u008C\u008D\u008E\u008F\u0090\u0091\u0092\u0093\u0094\u0095\u0096\u0097\u0098\u0099\u009A\u009B\u009C\u009D\u009E\u009F\u00A0Ą˘Ł¤ĽŚ§¨ŠŞŤŹ\u00ADŽŻ°ą˛ł´ľśˇ¸šşťź˝žżŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ˙",
      u"ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™´¨≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø¿¡¬√ƒ≈∆«»…\u00A0ÀÃÕŒœ\u2013\u2014“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\uF8FFÒÚÛÙıˆ˜¯˘˙˚¸˝˛ˇ",
      u"ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00A0",
      // clang-format on
  };
  ASSERT_EQ(std::size(upper_halves), suspected_encodings().size());
  for (size_t i = 0; i < std::size(upper_halves); ++i) {
    const OneByteEncoding& encoding = suspected_encodings()[i];
    const icu::UnicodeString upper_half(encoding.upper_half.data(), 128);
    EXPECT_EQ(shown(upper_half), shown(upper_halves[i])) << encoding.name;
    icu::UnicodeString bytes;
    for (char16_t byte = 0x80; byte <= 0xFF; ++byte) bytes.append(byte);
    EXPECT_EQ(encoding.encode(upper_half), bytes) << encoding.name;
    EXPECT_EQ(encoding.sloppy, encoding.name.starts_with("windows"));
    EXPECT_EQ(encoding.encode(u"\uFFFD").has_value(), encoding.sloppy) << encoding.name;
    EXPECT_EQ(encoding.encode(u"\x1A").has_value(), !encoding.sloppy) << encoding.name;
    EXPECT_FALSE(encoding.encode(u"猫"));
  }
}

// Bytes as characters, decoded.
std::optional<std::string> decoded(std::string_view bytes) {
  icu::UnicodeString characters;
  for (const char byte : bytes) characters.append(static_cast<char16_t>(static_cast<uint8_t>(byte)));
  const auto text = decode_utf8_variants(characters);
  return text ? std::optional(shown(*text)) : std::nullopt;
}

TEST(Encodings, VariantsOfUtf8) {
  using std::string_literals::operator""s;
  EXPECT_EQ(decoded("a\xC0\x80z"), "a\0z"s);
  EXPECT_EQ(decoded("\xED\xA0\xBD\xED\xB2\xA9"), "💩");
  EXPECT_EQ(decoded("\xED\x95\x9C"), "한");
  for (const char* bad :
       {"\xC0", "\xC0x", "\xED\xA0\x80", "\xED\xB2\xA9\xED\xA0\xBD", "\xED\xA0\xBD\xED\xB2", "\xFF"}) {
    EXPECT_FALSE(decoded(bad));
  }
  // A closing newline is taken for the last byte, as the reference has it.
  EXPECT_EQ(decoded("\xC0\n"), "\0"s);
  EXPECT_FALSE(decoded("\xC0\n\n"));
}

}  // namespace
}  // namespace zoetrope::text
