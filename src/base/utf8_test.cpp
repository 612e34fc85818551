#include "base/utf8.h"

#include <gmock/gmock.h>

#include "zoetrope/error.h"

namespace zoetrope {
namespace {

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(code, bytes);
    const DecodedChar decoded = decode_char(bytes, 0);
    ASSERT_EQ(decoded.code, code);
    ASSERT_EQ(decoded.bytes, bytes.size());
  }
}

TEST(Utf8, RefusesWhatIsNotUtf8) {
  using std::string_literals::operator""s;
  const std::string bad[] = {
      "\x80"s,         "\xBF"s,         "\xC0\x80"s,         "\xC1\xBF"s,         "\xE0\x9F\xBF"s,
      "\xED\xA0\x80"s, "\xED\xBF\xBF"s, "\xF0\x8F\xBF\xBF"s, "\xF4\x90\x80\x80"s, "\xF5\x80\x80\x80"s,
      "\xFF"s,         "\xC3"s,         "\xE2\x82"s,         "\xF0\x9F\x98"s,     "\xC3("s,
      "\xE2\x28\xA1"s, "\xC3\0"s};
  for (const std::string& bytes : bad) EXPECT_FALSE(decode_utf8(bytes)) << testing::PrintToString(bytes);
}

TEST(Utf8, TheErrorNamesByteAndOffset) {
  try {
    decode_utf8_or_fail("caf\xE9 au lait", "the prompt");
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the prompt is not valid UTF-8: byte 0xE9 at offset 3"));
  }
}

}  // namespace
}  // namespace zoetrope
