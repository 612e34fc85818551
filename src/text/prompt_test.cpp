// Expected values: diffusers' prompt_clean with ftfy 6.3.1, recorded with the reference data or by hand below.
#include "text/prompt.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "zoetrope/error.h"

#include "base/project_folders.h"

namespace zoetrope::text {
namespace {

TEST(Prompt, AskedWeightsAreFound) {
  EXPECT_EQ(weighted_part("a (red cat:1.3) on a mat"), "(red cat:1.3)");
  EXPECT_EQ(weighted_part("(blue)(dog: 2)"), "(dog: 2)");
  EXPECT_EQ(weighted_part("(a:.)(b:.5)"), "(b:.5)");
  for (const char* prompt : {"", "a red cat", "(a red cat)", "a screen (16:9)", "at noon (note: 3 cats)", "(cat:)",
                             "cat:1.3", "cat:1.3)", "(cat):1.3", "(:1.3)", "(see: cat)", "a poster (released: 1984)"})
    EXPECT_EQ(weighted_part(prompt), "") << prompt;
}

TEST(Prompt, RecordedPromptsAreEqual) {
  for (const char* name : {"tokenizer.json", "tokenizer_identity.json"}) {
    std::ifstream file(std::string(kGoldenFolder) + "/umt5/" + name);
    const nlohmann::json cases = nlohmann::json::parse(file);
    ASSERT_GE(cases.size(), 40U);
    for (const auto& c : cases) EXPECT_EQ(clean_prompt(c["prompt"].get<std::string>()), c["clean"].get<std::string>());
  }
}

TEST(Prompt, EachRepair) {
  using std::string_literals::operator""s;
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {" \t\n\u00A0\u3000 ", ""},
      {"  a \u2003 b\r\n\r\nc  ", "a b c"},
      {"“a” ‘b’ „c‟ ʼd", "\"a\" 'b' \"c\" 'd"},
      {"ＡＢＣ，１２３　ｶﾞ￣", "ABC,123 ガ ̄"},
      {"ﬁ ﬂ ﬃ ﬅ Ĳ ŉ Ǆ", "fi fl ffi ſt IJ 'n DŽ"},
      {"a\x1B[31;1mred\x1B[0mb \x1B[x", "aredb"},
      {"a\x1B[31 b", "a[31 b"},
      {"a\0b\x07\uFEFF\u206A\uFFF9\uFFFC\x7F"s, "ab"},
      {"e\u0301 A\u030A", "é Å"},
      {"soft\u00ADhyphen zero\u200Bwidth \u202Ebidi", "soft\u00ADhyphen zero\u200Bwidth \u202Ebidi"},
      // References: without a tag they are resolved until nothing changes, with one only twice.
      {"&amp;amp;amp;amp;lt;", "<"},
      {"<b> &amp;amp;amp;lt;", "<b> &amp;lt;"},
      // A tag switches them off for its line and those after it, not for those before.
      {"&amp;amp;amp;lt;\n<b>\n&amp;amp;amp;lt;", "< <b> &amp;lt;"},
      {"&EACUTE;\n<", "É <"},
      {"<\n&EACUTE;", "< &EACUTE;"},
      // Repairs that make others possible.
      {"&Atilde;&copy;", "é"},
      {"cafÃ© â€œquoteâ€\u009D", "café \"quote\""},
      {"\u0085 \u0091x\u0092", "… 'x'"},
  };
  for (const auto& [prompt, clean] : cases) EXPECT_EQ(clean_prompt(prompt), clean) << testing::PrintToString(prompt);
}

TEST(Prompt, RefusesBytesThatAreNotUtf8) {
  EXPECT_THAT(
      [] { clean_prompt("a cat \xFF"); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("the prompt is not valid UTF-8: byte 0xFF at offset 6")));
}

TEST(Prompt, LongTextStaysQuickAndWhole) {
  const std::string line(3000, 'x');
  EXPECT_EQ(clean_prompt(line + "\n" + line), line + " " + line);
}

}  // namespace
}  // namespace zoetrope::text
