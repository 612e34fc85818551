// Expected ids: the recorded ones of tokenizer.json, or worked out by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "text/test_prompts.h"
#include "text/tokenizer.h"

namespace zoetrope::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Use = UnigramParts::Use;

// Of well-formed text.
std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t buffer = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    buffer = buffer << 6 | static_cast<uint32_t>(digits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(buffer >> bits & 0xFF));
  }
  return bytes;
}

// The recorded tokenizer.json, its added tokens as pieces that are always used.
UnigramParts recorded_parts() {
  const json file = read_json(kGolden / "pipelines/wan21_t2v/tokenizer/tokenizer.json");
  UnigramParts parts;
  for (const json& entry : file["model"]["vocab"])
    parts.pieces.push_back({entry[0].get<std::string>(), entry[1].get<float>()});
  for (const json& added : file["added_tokens"]) parts.pieces.at(added["id"].get<size_t>()).use = Use::kAlways;
  parts.precompiled_charsmap = from_base64(file["normalizer"]["normalizers"][0]["precompiled_charsmap"]);
  return parts;
}

UnigramParts small_parts() {
  UnigramParts parts;
  parts.pieces = {{"<pad>", 0, Use::kNever},
                  {"</s>", 0, Use::kNever},
                  {"<s>", 0, Use::kNever},
                  {"<unk>", 0, Use::kNever},
                  {"▁a", -1},
                  {"b", -2},
                  {"▁", -3},
                  {"a", -4},
                  {"<x>", 0, Use::kAlways}};
  return parts;
}

Tokenizer tokenizer_of(const UnigramParts& parts) { return Tokenizer::from_unigram(parts, "t.gguf"); }

std::string refusal(const UnigramParts& parts) {
  return error_of([&] { tokenizer_of(parts); });
}

TEST(UnigramParts, GiveTheIdsOfTokenizerJson) {
  const Tokenizer tokenizer = tokenizer_of(recorded_parts());
  const json cases = read_json(kGolden / "umt5" / "tokenizer.json");
  ASSERT_GE(cases.size(), 40U);
  for (const json& c : cases) expect_recorded_ids(tokenizer, c);
}

// Spaces at every place, by every road: plain, rewritten by the map, and the mark that stands for one.
TEST(UnigramParts, TreatSpacesAsTokenizerJsonDoes) {
  const Tokenizer by_parts = tokenizer_of(recorded_parts());
  const Tokenizer by_file = Tokenizer::load(kGolden / "pipelines/wan21_t2v/tokenizer");
  for (const std::string space : {" ", "  ", "   ", "\t", "\u00A0", " \u3000", "▁", " ▁ ", "\u200B", "\n\n"}) {
    for (const char* places : {"{0}", "{0}a", "a{0}", "a{0}b", "{0}a{0}b{0}"}) {
      const std::string text = fmt::format(fmt::runtime(places), space);
      EXPECT_EQ(by_parts.encode(text), by_file.encode(text)) << '\'' << text << '\'';
    }
  }
}

TEST(UnigramParts, SpacesMayBeKept) {
  UnigramParts parts = small_parts();
  EXPECT_THAT(tokenizer_of(parts).encode("a  b "), ElementsAre(4, 6, 5, 1));
  parts.remove_extra_whitespaces = false;
  EXPECT_THAT(tokenizer_of(parts).encode("a  b "), ElementsAre(4, 6, 6, 5, 6, 1));
  parts.add_space_prefix = false;
  EXPECT_THAT(tokenizer_of(parts).encode("a  a"), ElementsAre(7, 6, 4, 1));
}

TEST(UnigramParts, PiecesThatAreNeverUsedArePlainText) {
  UnigramParts parts = small_parts();
  EXPECT_THAT(tokenizer_of(parts).encode("</s> <unk>"), ElementsAre(6, 3, 6, 3, 1));
  parts.unknown_id = 7;  // whatever else it is, it is found in no text
  EXPECT_THAT(tokenizer_of(parts).encode("ba</s>"), ElementsAre(6, 5, 7, 1));
}

TEST(UnigramParts, PiecesThatAreAlwaysUsedAreCutOutFirst) {
  EXPECT_THAT(tokenizer_of(small_parts()).encode("b<x>a<x>"), ElementsAre(6, 5, 8, 4, 8, 1));
}

// An unknown character costs as much as the worst piece and 10 more, here −30 of −31 for "x", "ab" against −40 for
// "xa", "b". Rows of padding (−10000) and user defined tokens (−1000) are not the worst piece.
TEST(UnigramParts, ScoresOfOtherPiecesDoNotCount) {
  UnigramParts parts = small_parts();
  parts.pieces[5].score = -20;
  parts.pieces.push_back({"xa", -20});
  parts.pieces.push_back({"ab", -1});
  parts.pieces.push_back({"[PAD11]", -10000, Use::kNever});
  parts.pieces.push_back({"<y>", -1000, Use::kAlways});
  EXPECT_THAT(tokenizer_of(parts).encode("xab"), ElementsAre(6, 3, 10, 1));
}

TEST(UnigramParts, WhatIsDamagedIsNamed) {
  UnigramParts parts = small_parts();
  parts.pieces[5].text = std::string("\xff");
  EXPECT_THAT(refusal(parts), testing::StartsWith("t.gguf: piece 5"));
  for (int32_t UnigramParts::*id : {&UnigramParts::unknown_id, &UnigramParts::eos_id, &UnigramParts::pad_id}) {
    for (const int32_t wrong : {-1, 9}) {
      parts = small_parts();
      parts.*id = wrong;
      EXPECT_THAT(refusal(parts), HasSubstr(fmt::format("token is {}, but there are 9 pieces", wrong)));
    }
  }
  parts = recorded_parts();
  const std::string whole = parts.precompiled_charsmap;
  for (const size_t bytes : {size_t{1}, size_t{4}, whole.size() / 4}) {
    parts.precompiled_charsmap = whole.substr(0, bytes);
    EXPECT_THAT(refusal(parts), testing::StartsWith("t.gguf: precompiled_charsmap is truncated"));
  }
}

}  // namespace
}  // namespace zoetrope::text
