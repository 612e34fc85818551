// The regular expressions of ftfy 6.3.1 (ftfy/badness.py, ftfy/chardata.py; Apache-2.0) in ICU's dialect. The repair:
// encode the text with each suspected encoding, restore what is often lost on the way, and see whether this is UTF-8.
#include "text/mojibake.h"

#include <unicode/ucnv.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/regex.h"

namespace zoetrope::text {

namespace {

using icu::UnicodeString;

// What a "{name}" in a pattern stands for. First the characters that hint at mistaken encodings (MOJIBAKE_CATEGORIES),
// then those that bytes of UTF-8 become in the suspected encodings (UTF8_CLUES).
constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
    {"common", R"(\xA0\xAD´·\u2013\u2014\u2015’…)"},
    {"c1", R"(\x80-\x9F)"},
    {"bad", R"(¤¦¨ª¬¯¸ºƒˆˇ˘˛˜†‡‰⌐◊\uFFFD)"},
    {"law", "§¶"},
    {"currency", "¢£¥₧€"},
    {"start", R"(¡©«¿΄΅‘‚“„•‹\uF8FF)"},
    {"end", "®»˝”›™"},
    {"numeric", "±²³µ¹¼½¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥"},
    {"kaomoji", "°Ò-ÖÙ-Üò-öø-üŌŐŪŲ"},
    {"upper", "À-ÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ"},
    {"lower", "ß-ñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ"},
    {"upper_common", "ÞΆΈΉΊΌΎΏΑ-ΫЁ-Я"},
    {"lower_common", "ά-ωа-џ"},
    {"box", "│┌┐┘├┤┬┼═-╬▀▄█▌▐-▓"},
    {"first_of_2", "Â-ßĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŠŢŪŮŰŲŹŻŽΒ-ΡΣ-ίВ-Я"},
    {"first_of_3", "à-ïāăąćčďēėęěģīįķĺļŕźΰ-οа-п"},
    {"first_of_4", "ðóđğšπσру"},
    {"continuation", R"(\x20{strict}\u2013\u2014\u2015‘’‚“”„•…)"},
    {"strict", R"(\x80-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒˆˇ˘˛˜˝΄΅ΆΈΉΊΌΎΏЁ-ЌЎЏё-ќўџҐґ†‡‰‹›€№™)"},
    // Python's \s, and its \w over Unicode 14, that of the recorded reference.
    {"s", R"(\p{White_Space}\x1C-\x1F)"},
    {"w", R"(_[[\p{L}\p{N}]&&[\p{Age=14.0}]])"},
};

Regex regex(std::string pattern) {
  for (const auto& [name, members] : kClasses) {
    const std::string key = fmt::format("{{{}}}", name);
    for (size_t at = 0; (at = pattern.find(key, at)) != std::string::npos;) pattern.replace(at, key.size(), members);
  }
  return Regex(pattern);
}

constexpr std::string_view kUnlikelyNeighbours =
    // In any encoding.
    "[{c1}]"
    "|[{bad}{lower}{upper}{box}{start}{end}{currency}{numeric}{law}][{bad}]"
    "|[a-zA-Z][{lower_common}{upper_common}][{bad}]"
    "|[{bad}][{lower}{upper}{box}{start}{end}{currency}{numeric}{law}]"
    "|[{lower}{lower_common}{box}{end}{currency}{numeric}][{upper}]"
    "|[{box}{end}{currency}{numeric}][{lower}]"
    "|[{lower}{box}{end}][{currency}]"
    "|[{s}][{upper}][{currency}]"
    "|[{upper}{box}][{numeric}{law}]"
    "|[{lower}{upper}{box}{currency}{end}][{start}][{numeric}]"
    "|[{lower}{upper}{currency}{numeric}{box}{law}][{end}][{start}]"
    "|[{currency}{numeric}{box}][{start}]"
    "|[a-z][{upper}][{start}{currency}]"
    "|[{box}][{kaomoji}]"
    "|[{lower}{upper}{currency}{numeric}{start}{end}{law}][{box}]"
    "|[{box}][{end}]"
    "|[{lower}{upper}][{start}{end}][{w}]"
    // The ligature before anything but a plain letter, and a degree sign after a capital.
    "|[Œœ][^A-Za-z]"
    "|[{upper}]°"
    // UTF-8 read as Windows-1252: two-byte sequences; superscripts; Arabic (two letters); South Asian letters; a with
    // accents and the no-break space.
    R"(|[ÂÃÎÐ][€œŠš¢£Ÿž\xA0\xAD®©°·»{start}{end}\u2013\u2014´])"
    "|×[²³]"
    "|[ØÙ][{common}{currency}{bad}{numeric}{start}ŸŠ®°µ»][ØÙ][{common}{currency}{bad}{numeric}{start}ŸŠ®°µ»]"
    "|à[²µ¹¼½¾]"
    R"(|Ã[\xA0¡])"
    R"(|(?:[a-z][{s}]?|\A)[ÃÂ]\x20)"
    R"(|[a-z.,?!{end}]Â[\x20{start}{end}])"
    // As MacRoman.
    "|√[±∂†≠®™´≤≥¥µø]"
    "|≈[°¢]"
    "|‚Ä[ìîïòôúùû†°¢π]"
    "|‚[âó][àä°ê]"
    // As Windows-1251: general punctuation; Latin-1 and Cyrillic; the latter twice over.
    "|вЂ"
    "|[ВГРС][{c1}{bad}{start}{end}{currency}°µ][ВГРС]"
    R"(|ГўВЂВ[^\n][A-Za-z\x20])"
    // As Windows-1253 and Windows-1257.
    R"(|β€[™\xA0Ά\xAD®°])"
    "|[ΒΓΞΟ][{c1}{bad}{start}{end}{currency}°][ΒΓΞΟ]"
    "|ā€";

// "Ã la" was "à la": there the lost byte A0 is before the space, which stays; but not in Portuguese "àquele", "às".
UnicodeString restore_byte_a0(const UnicodeString& bytes) {
  static const Regex a_grave = regex(R"(\xC3 (?! |quele|quela|quilo|s ))");
  // UTF-8 in which one A0 became a space: after lead bytes that with A0 are likely characters (no-break space, à, Š, Π,
  // Р, ٠), or among continuations that are neither the ellipsis nor the no-break space of Windows-1252.
  static const Regex altered = regex(
      R"([\xC2\xC3\xC5\xCE\xD0\xD9] |[\xE2\xE3] [\x80-\x84\x86-\x9F\xA1-\xBF]|[\xE0-\xE3][\x80-\x84\x86-\x9F\xA1-\xBF] )"
      R"(|\xF0 [\x80-\xBF][\x80-\xBF]|\xF0[\x80-\xBF] [\x80-\xBF]|\xF0[\x80-\xBF][\x80-\xBF] )");
  return altered.replace(a_grave.replace(bytes, u"\u00C3\u00A0 "), [](const UnicodeString& sequence) {
    return UnicodeString(sequence).findAndReplace(u" ", u"\u00A0");
  });
}

// UTF-8 or CESU-8 with bytes lost on the way (0x1A; at most one of them a question mark) becomes U+FFFD.
UnicodeString replace_lossy_sequences(const UnicodeString& bytes) {
  static const Regex lossy = regex(
      R"([\xC2-\xDF]\x1A|[\xC2\xC3]\?)"
      R"(|\xED[\xA0-\xAF][\x1A?]\xED[\xB0-\xBF][\x1A?\x80-\xBF]|\xED[\xA0-\xAF][\x1A?\x80-\xBF]\xED[\xB0-\xBF][\x1A?])"
      R"(|[\xE0-\xEF][\x1A?][\x1A\x80-\xBF]|[\xE0-\xEF][\x1A\x80-\xBF][\x1A?])"
      R"(|[\xF0-\xF4][\x1A?][\x1A\x80-\xBF][\x1A\x80-\xBF]|[\xF0-\xF4][\x1A\x80-\xBF][\x1A?][\x1A\x80-\xBF])"
      R"(|[\xF0-\xF4][\x1A\x80-\xBF][\x1A\x80-\xBF][\x1A?]|\x1A)");
  return lossy.replace(bytes, u"\u00EF\u00BF\u00BD");
}

// Mistaken runs inside of text that is otherwise right, each repaired by itself.
UnicodeString decode_inconsistent_utf8(const UnicodeString& text) {
  static const Regex run = regex(
      "(?<![{strict}])(?:[{first_of_2}][{continuation}]|[{first_of_3}][{continuation}][{continuation}]"
      "|[{first_of_4}][{continuation}][{continuation}][{continuation}])++");
  return run.replace(text, [&](const UnicodeString& match) {
    // Shorter than the whole, or this would call itself for ever.
    return match.length() < text.length() && looks_like_mojibake(match) ? fix_encoding(match) : match;
  });
}

UnicodeString fix_encoding_once(const UnicodeString& text) {
  if (!looks_like_mojibake(text)) return text;
  for (const OneByteEncoding& encoding : suspected_encodings()) {
    std::optional<UnicodeString> bytes = encoding.encode(text);
    if (!bytes) continue;
    // In MacRoman a dash followed by a space would look like a lost A0.
    if (encoding.name != "macintosh") bytes = restore_byte_a0(*bytes);
    if (encoding.sloppy) bytes = replace_lossy_sequences(*bytes);
    if (const auto fixed = decode_utf8_variants(*bytes)) return *fixed;
  }
  if (UnicodeString fixed = decode_inconsistent_utf8(text); fixed != text) return fixed;
  // What is left is mostly Latin-1 that was meant as Windows-1252.
  return fix_c1_controls(text);
}

OneByteEncoding make_encoding(const char* name) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UConverter, decltype(&ucnv_close)> converter(ucnv_open(name, &status), &ucnv_close);
  OneByteEncoding encoding{name, std::string_view(name).starts_with("windows")};
  for (size_t i = 0; i < encoding.upper_half.size(); ++i) {
    const char byte = static_cast<char>(static_cast<uint8_t>(0x80 + i));
    char16_t character = 0;
    ucnv_toUChars(converter.get(), &character, 1, &byte, 1, &status);
    encoding.upper_half[i] = character != 0xFFFD ? character : static_cast<char16_t>(0x80 + i);
  }
  if (U_FAILURE(status)) fail("ICU has no data for {}: {}", name, u_errorName(status));
  return encoding;
}

}  // namespace

bool looks_like_mojibake(const UnicodeString& text) {
  static const Regex unlikely = regex(std::string(kUnlikelyNeighbours));
  return unlikely.found_in(text);
}

std::span<const OneByteEncoding> suspected_encodings() {
  static const std::vector<OneByteEncoding> encodings = [] {
    std::vector<OneByteEncoding> made;
    for (const char* name : {"iso-8859-1", "windows-1252", "windows-1251", "windows-1250", "windows-1253",
                             "windows-1254", "windows-1257", "iso-8859-2", "macintosh", "ibm-437"}) {
      made.push_back(make_encoding(name));
    }
    made.back().upper_half[0x66] = u'µ';  // the micro sign, as Python has it; ICU's is the Greek letter
    return made;
  }();
  return encodings;
}

std::optional<UnicodeString> OneByteEncoding::encode(const UnicodeString& text) const {
  UnicodeString bytes;
  for (int32_t i = 0; i < text.length(); ++i) {
    const char16_t c = text.charAt(i);
    if (c < 0x80) {
      if (sloppy && c == 0x1A) return std::nullopt;
      bytes.append(c);
    } else if (const auto* found = std::find(upper_half.begin(), upper_half.end(), c); found != upper_half.end()) {
      bytes.append(static_cast<char16_t>(0x80 + (found - upper_half.begin())));
    } else if (sloppy && c == 0xFFFD) {
      bytes.append(u'\x1A');
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

std::optional<UnicodeString> decode_utf8_variants(const UnicodeString& bytes) {
  // The reference accepts a newline that ends the text in place of a sequence's last byte (its patterns use "$").
  static const Regex null = regex(R"(\xC0(?:\x80|\n\z))");
  static const Regex pair = regex(R"(\xED[\xA0-\xAF][\x80-\xBF]\xED[\xB0-\xBF](?:[\x80-\xBF]|\n\z))");
  const UnicodeString joined = pair.replace(bytes, [](const UnicodeString& match) {
    const auto bits = [&](int32_t i, uint32_t mask) { return match.charAt(i) & mask; };
    const uint32_t code =
        0x10000U + (bits(1, 0x0F) << 16) + (bits(2, 0x3F) << 10) + (bits(4, 0x0F) << 6) + bits(5, 0x3F);
    UnicodeString utf8;
    for (const char byte : encode_utf8(std::u32string{code}))
      utf8.append(static_cast<char16_t>(static_cast<uint8_t>(byte)));
    return utf8;
  });
  std::string utf8;
  const UnicodeString plain = null.replace(joined, UnicodeString(u'\0'));
  for (int32_t i = 0; i < plain.length(); ++i) utf8.push_back(static_cast<char>(static_cast<uint8_t>(plain.charAt(i))));
  if (!decode_utf8(utf8)) return std::nullopt;
  return to_utf16(utf8);
}

UnicodeString fix_encoding(UnicodeString text) {
  for (;;) {
    UnicodeString fixed = fix_encoding_once(text);
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

UnicodeString fix_c1_controls(UnicodeString text) {
  for (int32_t i = 0; i < text.length(); ++i) {
    if (const char16_t c = text.charAt(i); c >= 0x80 && c <= 0x9F) text.setCharAt(i, decode_windows_1252(c));
  }
  return text;
}

char16_t decode_windows_1252(char16_t byte) { return suspected_encodings()[1].upper_half[byte - 0x80U]; }

}  // namespace zoetrope::text
