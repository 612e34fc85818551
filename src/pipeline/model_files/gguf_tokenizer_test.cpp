#include "pipeline/model_files/gguf_tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/input_file.h"
#include "base/json.h"
#include "base/project_folders.h"
#include "base/test_folder.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string text_of(const std::string& text) { return bytes_of(uint64_t{text.size()}) + text; }

// A GGUF file of metadata alone.
class GgufTokenizerTest : public testing::Test {
 public:
  enum Type : uint32_t { kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kList = 9 };

  GgufTokenizerTest& with(const std::string& key, Type type, const std::string& value) {
    entries_ += text_of("tokenizer.ggml." + key) + bytes_of(uint32_t{type}) + value;
    ++count_;
    return *this;
  }
  template <typename T>
  GgufTokenizerTest& with_list(const std::string& key, Type type, const std::vector<T>& values) {
    std::string list = bytes_of(uint32_t{type}) + bytes_of(uint64_t{values.size()});
    for (const T& value : values) {
      if constexpr (std::is_same_v<T, std::string>) list += text_of(value);
      else list += bytes_of(value);
    }
    return with(key, kList, list);
  }
  GgufTokenizerTest& with_tokens(const std::vector<std::string>& tokens = {"<pad>", "</s>", "<s>", "<unk>", "▁", "fox",
                                                                           "▁fox", "f", "unused"}) {
    return with("model", kString, text_of("t5")).with_list("tokens", kString, tokens);
  }
  GgufTokenizerTest& with_scores(const std::vector<float>& scores = {0, 0, 0, 0, -2, -3, -1, -4, -10000}) {
    return with_list("scores", kF32, scores);
  }
  GgufTokenizerTest& with_types(const std::vector<int32_t>& types = {3, 3, 3, 2, 1, 1, 1, 1, 5}) {
    return with_list("token_type", kI32, types);
  }
  std::optional<text::Tokenizer> open() {
    folder_.write("t.gguf", "GGUF" + bytes_of(uint32_t{3}) + bytes_of(uint64_t{0}) + bytes_of(uint64_t{count_}) +
                                std::exchange(entries_, ""));
    count_ = 0;
    return gguf_tokenizer(*io::TensorFile::open(folder_ / "t.gguf"));
  }
  std::string refusal() {
    return error_of([&] { open(); });
  }

 private:
  TestFolder folder_;
  std::string entries_;
  uint64_t count_ = 0;
};

TEST_F(GgufTokenizerTest, PiecesAreFoundByTheirScores) {
  const auto tokenizer = with_tokens().with_scores().with_types().open();
  ASSERT_TRUE(tokenizer);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer->encode("fox"), (Ids{6, 1}));
  EXPECT_EQ(tokenizer->encode("fox  fox "), (Ids{6, 6, 1}));
  EXPECT_EQ(tokenizer->encode("unused"), (Ids{4, 3, 1}));  // a row that is not used; one id for all that is unknown
  EXPECT_EQ(tokenizer->encode("</s>"), (Ids{4, 3, 1}));    // not the token, plain text
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
}

TEST_F(GgufTokenizerTest, IdsMayBeNamed) {
  const auto tokenizer = with_tokens()
                             .with_scores()
                             .with_types()
                             .with("eos_token_id", kU32, bytes_of(uint32_t{2}))
                             .with("unknown_token_id", kU32, bytes_of(uint32_t{8}))
                             .open();
  EXPECT_EQ(tokenizer->encode("x"), (std::vector<int32_t>{4, 8, 2}));
}

TEST_F(GgufTokenizerTest, SpacesAreTreatedAsTheFileSays) {
  using Ids = std::vector<int32_t>;
  const auto encoded = [&](const char* key, uint8_t value) {
    return with_tokens().with_scores().with_types().with(key, kBool, bytes_of(value)).open()->encode("f  f");
  };
  EXPECT_EQ(encoded("remove_extra_whitespaces", 1), (Ids{4, 7, 4, 7, 1}));
  EXPECT_EQ(encoded("remove_extra_whitespaces", 0), (Ids{4, 7, 4, 4, 7, 1}));
  EXPECT_EQ(encoded("add_space_prefix", 1), (Ids{4, 7, 4, 7, 1}));
  EXPECT_EQ(encoded("add_space_prefix", 0), (Ids{7, 4, 7, 1}));
}

TEST_F(GgufTokenizerTest, UserDefinedTokensAreFoundFirst) {
  const auto tokenizer = with_tokens().with_scores().with_types({3, 3, 3, 2, 1, 1, 1, 1, 4}).open();
  EXPECT_EQ(tokenizer->encode("foxunused"), (std::vector<int32_t>{6, 8, 1}));
}

TEST_F(GgufTokenizerTest, AFileWithoutOneHasNone) { EXPECT_FALSE(open()); }

TEST_F(GgufTokenizerTest, WhatIsDamagedIsNamed) {
  EXPECT_THAT(with_list("tokens", kString, std::vector<std::string>{"a"}).refusal(),
              AllOf(HasSubstr("t.gguf"), HasSubstr("'t5'")));
  EXPECT_THAT(
      with("model", kString, text_of("gpt2")).with_list("tokens", kString, std::vector<std::string>{"a"}).refusal(),
      HasSubstr("'gpt2'"));
  EXPECT_THAT(with_tokens().with_types().refusal(), HasSubstr("has no tokenizer.ggml.scores"));
  EXPECT_THAT(with_tokens().with_scores().refusal(), HasSubstr("has no tokenizer.ggml.token_type"));
  EXPECT_THAT(with_tokens().with_scores({1, 2}).with_types().refusal(), HasSubstr("scores has 2 values for 9 tokens"));
  EXPECT_THAT(with_tokens().with_scores().with_types({1}).refusal(), HasSubstr("token_type has 1 values"));
  EXPECT_THAT(with_tokens({}).with_scores().with_types().refusal(), HasSubstr("tokens is empty"));
  EXPECT_THAT(with_tokens().with_list("scores", kI32, std::vector<int32_t>(9)).with_types().refusal(),
              HasSubstr("is a list of i32, but must be of f32"));
  EXPECT_THAT(with_tokens().with_scores({0, 0, 0, 0, NAN, 0, 0, 0, 0}).with_types().refusal(), HasSubstr("score 4"));
  EXPECT_THAT(with_tokens().with_scores().with_types().with("eos_token_id", kU32, bytes_of(uint32_t{9})).refusal(),
              HasSubstr("the closing token is 9"));
  EXPECT_THAT(with_tokens().with_scores().with_types({1, 1, 1, 1, 1, 1, 1, 1, 1}).refusal(),
              HasSubstr("unknown_token_id is missing"));
  for (const int32_t type : {0, 7, -1}) {
    EXPECT_THAT(with_tokens().with_scores().with_types({3, 3, 3, 2, 1, type, 1, 1, 1}).refusal(),
                HasSubstr(fmt::format("token_type of token 5 is {}, but must be from 1 to 6", type)));
  }
  for (const char* key : {"unknown_token_id", "eos_token_id", "padding_token_id"}) {
    EXPECT_THAT(with_tokens().with_scores().with_types().with(key, kU32, bytes_of(uint32_t{9})).refusal(),
                HasSubstr("token is 9, but there are 9 pieces"));
    EXPECT_THAT(with_tokens().with_scores().with_types().with(key, kI32, bytes_of(int32_t{-1})).refusal(),
                AllOf(HasSubstr(key), HasSubstr("not a token's id")));
  }
  EXPECT_THAT(with_tokens({"a", "b", "\xff", "<unk>", "c", "d", "e", "f", "g"})
                  .with_scores()
                  .with_types({1, 1, 1, 2, 1, 1, 1, 1, 1})
                  .refusal(),
              AllOf(HasSubstr("piece 2"), HasSubstr("UTF-8")));
  EXPECT_THAT(with_tokens()
                  .with_scores()
                  .with_types()
                  .with_list("precompiled_charsmap", kU8, std::vector<uint8_t>{1, 2, 3})
                  .refusal(),
              HasSubstr("charsmap"));
}

TEST_F(GgufTokenizerTest, FlagsMustBeThoseOfTheTextEncoder) {
  const auto refused = [&](const char* key, Type type, const std::string& value) {
    return with_tokens().with_scores().with_types().with(key, type, value).refusal();
  };
  const std::string no = bytes_of(uint8_t{0}), yes = bytes_of(uint8_t{1});
  EXPECT_EQ(refused("add_bos_token", kBool, no), "no error");
  EXPECT_EQ(refused("add_eos_token", kBool, yes), "no error");
  EXPECT_THAT(refused("add_bos_token", kBool, yes), HasSubstr("no token before a prompt"));
  EXPECT_THAT(refused("add_eos_token", kBool, no), HasSubstr("needs </s> after a prompt"));
  for (const char* key : {"add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"}) {
    EXPECT_THAT(refused(key, kU8, yes), AllOf(HasSubstr("t.gguf"), HasSubstr(key), HasSubstr("must be true or false")));
  }
}

// The recorded text encoders, and the prompts with their ids. Where SentencePiece itself gives others, they are "_spm".
const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests" / "golden";

void expect_ids(const text::Tokenizer& tokenizer, const char* table, bool (*by_sentencepiece)(std::string_view)) {
  const auto file = kGolden / "umt5" / table;
  const nlohmann::json cases = parse_json(read_file(file), file.string());
  ASSERT_GE(cases.size(), 40U);
  for (const nlohmann::json& c : cases) {
    for (const auto& [text, ids] : {std::pair("prompt", "ids_raw"), std::pair("clean", "ids_clean")}) {
      const auto prompt = c[text].get<std::string>();
      const std::string own = std::string(ids) + "_spm";
      const bool other = by_sentencepiece(prompt) && c.contains(own);
      EXPECT_EQ(tokenizer.encode(prompt), c[other ? own : ids].get<std::vector<int32_t>>()) << prompt;
    }
  }
}

// As tokenizer.json, but special tokens that are spelled out are plain text.
TEST(RecordedTextEncoder, TheGgufFileGivesTheIds) {
  const auto tokenizer = gguf_tokenizer(*io::TensorFile::open(kGolden / "weights" / "umt5" / "umt5_q8_0.gguf"));
  ASSERT_TRUE(tokenizer);
  expect_ids(*tokenizer, "tokenizer.json", [](std::string_view prompt) {
    return prompt.find("</s>") != prompt.npos || prompt.find("<extra_id_0>") != prompt.npos;
  });
  EXPECT_EQ(tokenizer->vocab_size(), 1024);  // the rows of the embedding
}

TEST(RecordedTextEncoder, TheSentencePieceTensorGivesTheIds) {
  const auto file = io::TensorFile::open(kGolden / "weights" / "umt5" / "comfy_fp16.safetensors");
  EXPECT_FALSE(gguf_tokenizer(*file));
  const std::string_view bytes(reinterpret_cast<const char*>(file->bytes("spiece_model")),
                               file->info("spiece_model").bytes);
  const auto tokenizer = text::Tokenizer::from_sentencepiece(bytes, "comfy_fp16.safetensors");
  expect_ids(tokenizer, "tokenizer_identity.json", [](std::string_view) { return true; });
}

}  // namespace
}  // namespace zoetrope::pipeline
