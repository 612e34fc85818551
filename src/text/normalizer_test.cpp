// Expected values: the `tokenizers` library 0.23.3.
#include "text/normalizer.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "zoetrope/error.h"

#include "base/json.h"
#include "base/project_folders.h"
#include "base/test_folder.h"
#include "text/grapheme.h"

namespace zoetrope::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string normal(const char* block, std::string text) {
  return make_normalizer(JsonObject::parse(block, "test"))({std::move(text), true}).text;
}

std::vector<std::string> words(const char* block, std::string text, bool first = true) {
  std::vector<std::string> result;
  for (const Word& word : make_pre_tokenizer(JsonObject::parse(block, "test"))({{std::move(text), first}})) {
    result.push_back(word.text);
  }
  return result;
}

TEST(Normalizer, EachType) {
  EXPECT_EQ(make_normalizer(std::nullopt)({" a ", true}).text, " a ");
  EXPECT_EQ(normal(R"({"type":"Strip","strip_left":false,"strip_right":true})", "\u3000a\u2003\n"), "\u3000a");
  EXPECT_EQ(normal(R"({"type":"Strip","strip_left":true,"strip_right":true})", " a "), "a");
  EXPECT_EQ(normal(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":"▁"})", "a  b c   é   "), "a▁b c▁é▁");
  EXPECT_EQ(normal(R"({"type":"Replace","pattern":{"Regex":"[^a]"},"content":"-"})", "é😀a"), "--a");
  EXPECT_EQ(normal(R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":"_"})", "a \u0085\vb\u3000"), "a_b_");
  EXPECT_EQ(normal(R"({"type":"Replace","pattern":{"Regex":"^."},"content":"_"})", "ab\n\u2028c"), "_b\n_c");
  EXPECT_EQ(normal(R"({"type":"Replace","pattern":{"String":"a.b"},"content":""})", "a.ba.b axb"), " axb");
  EXPECT_EQ(normal(R"({"type":"Prepend","prepend":"▁"})", "a"), "▁a");
  EXPECT_EQ(normal(R"({"type":"Prepend","prepend":"▁"})", ""), "");
  EXPECT_EQ(normal(R"({"type":"NFC"})", "e\u0301"), "é");
  EXPECT_EQ(normal(R"({"type":"NFD"})", "é"), "e\u0301");
  EXPECT_EQ(normal(R"({"type":"NFKC"})", "ﬁ①"), "fi1");
  EXPECT_EQ(normal(R"({"type":"NFKD"})", "Å"), "A\u030A");
  EXPECT_EQ(normal(R"({"type":"NFKC"})", "\u32FF"), "\u32FF");  // younger than the reference's tables
  EXPECT_EQ(normal(R"({"type":"Lowercase"})", "ÀΣİ"), "àσi\u0307");
  EXPECT_EQ(normal(R"({"type":"StripAccents"})", "e\u0301\u0903x"), "ex");
  EXPECT_EQ(normal(R"({"type":"Nmt"})", "a\x01\tb\u200Bc\uFEFF"), "a b c ");
  EXPECT_EQ(
      normal(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"}]})", "É"),
      "e");
}

TEST(Normalizer, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const json& block) {
    return error_of([&] {
      make_normalizer(JsonObject::parse(json_text(json{{"n", block}}), "tokenizer.json").object("n"));
    });
  };
  EXPECT_THAT(refusal({{"type", "ByteLevel"}}),
              StartsWith("tokenizer.json: n: type 'ByteLevel' is not supported; Sequence,"));
  EXPECT_THAT(refusal({{"type", "Replace"}, {"pattern", {{"Regex", "["}}}, {"content", ""}}),
              HasSubstr("n.pattern.Regex '[' is not a regular expression"));
  EXPECT_THAT(refusal({{"type", "Strip"}, {"strip_left", 1}, {"strip_right", true}}),
              HasSubstr("'n.strip_left' is 1, but must be true or false"));
  EXPECT_THAT(refusal(json::object()), HasSubstr("'n.type' is missing"));
  EXPECT_THAT(refusal(json::array()), HasSubstr("'n' is [], but must be an object"));
  json deep = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"normalizers", json::array({deep})}};
  EXPECT_THAT(refusal(deep), HasSubstr("nested more than"));
}

// The character map of the recorded checkpoint, an ordinary one (nmt_nfkc).
class RecordedMap : public testing::Test {
 protected:
  RecordedMap() {
    std::ifstream file(std::string(kGoldenFolder) + "/pipelines/wan21_t2v/tokenizer/tokenizer.json");
    block_ = json::parse(file)["normalizer"]["normalizers"][0];
  }
  json block_;
};

TEST_F(RecordedMap, WorksGraphemeByGrapheme) {
  const Normalizer map = make_normalizer(JsonObject::parse(json_text(block_), "map"));
  const std::pair<const char*, const char*> cases[] = {
      {"e\u0301", "é"},
      {"a\r\nb", "a b"},
      {"ﬁ ½ ①", "fi 1⁄2 1"},
      // A short grapheme that begins with a key is replaced as a whole, and its marks are lost; a long one is not.
      {"º\u0301x", "ox"},
      {"½\u20DD", "1⁄2"},
      {"º\u0301\u0301", "o\u0301\u0301"},
      {"ガ", "ガ"},
      {"\u1100\u1161\u11A8", "\u1100\u1161\u11A8"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(map({text}).text, expected) << text;
}

TEST_F(RecordedMap, DamagedMapsAreRefused) {
  const auto text = block_["precompiled_charsmap"].get<std::string>();
  for (const std::string& bad :
       {std::string(), std::string("AA=="), text.substr(0, 400), text.substr(1), text + "A*=="}) {
    block_["precompiled_charsmap"] = bad;
    EXPECT_THAT([&] { make_normalizer(JsonObject::parse(json_text(block_), "map")); },
                testing::ThrowsMessage<Error>(testing::StartsWith("map: precompiled_charsmap")));
  }
}

TEST(Grapheme, Boundaries) {
  const auto lengths = [](std::u32string_view text) {
    std::vector<size_t> result;
    for (size_t i = 0; i < text.size();) {
      const size_t end = grapheme_end(text, i);
      result.push_back(end - i);
      i = end;
    }
    return result;
  };
  EXPECT_THAT(lengths(U"ab"), ElementsAre(1, 1));
  EXPECT_THAT(lengths(U"e\u0301\u0302x"), ElementsAre(3, 1));
  EXPECT_THAT(lengths(U"\r\n\n\u0301"), ElementsAre(2, 1, 1));
  EXPECT_THAT(lengths(U"🇩🇪🇫🇷🇮"), ElementsAre(2, 2, 1));
  EXPECT_THAT(lengths(U"👨‍👩‍👧a‍b"), ElementsAre(5, 2, 1));
  EXPECT_THAT(lengths(U"👍🏽👍"), ElementsAre(2, 1));
  EXPECT_THAT(lengths(U"각각ᄀ"), ElementsAre(1, 2, 1));
  EXPECT_THAT(lengths(U"क्षक"), ElementsAre(3, 1));
  EXPECT_THAT(lengths(U"\u0600\u0661"), ElementsAre(2));
}

TEST(PreTokenizer, Metaspace) {
  const char* always = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})";
  EXPECT_THAT(words(always, "a b  c"), ElementsAre("▁a", "▁b", "▁", "▁c"));
  EXPECT_THAT(words(always, "▁a▁"), ElementsAre("▁a", "▁"));
  EXPECT_THAT(words(always, " a"), ElementsAre("▁a"));
  const char* first = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})";
  EXPECT_THAT(words(first, "a b"), ElementsAre("▁a", "▁b"));
  EXPECT_THAT(words(first, "a b", false), ElementsAre("a", "▁b"));
  EXPECT_THAT(words(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never","split":false})", "a b"),
              ElementsAre("a_b"));
  // The older spelling.
  EXPECT_THAT(words(R"({"type":"Metaspace","replacement":"▁","add_prefix_space":true,"str_rep":"▁"})", "a"),
              ElementsAre("▁a"));
  EXPECT_THAT(words(R"({"type":"Metaspace","replacement":"▁","add_prefix_space":false,"prepend_scheme":"never"})", "a"),
              ElementsAre("a"));
  EXPECT_THROW(words(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"sometimes"})", "a"), Error);
  EXPECT_THROW(words(R"({"type":"Metaspace","replacement":"xy"})", "a"), Error);
}

TEST(PreTokenizer, WhitespaceSplitThenMetaspace) {
  const char* block = R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
      {"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]})";
  EXPECT_THAT(words(block, "a \u3000b\n"), ElementsAre("▁a", "b"));
  EXPECT_THAT(words(block, " a"), ElementsAre("a"));
  EXPECT_THROW(words(R"({"type":"ByteLevel"})", "a"), Error);
}

}  // namespace
}  // namespace zoetrope::text
