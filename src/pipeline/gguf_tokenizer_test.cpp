#include "pipeline/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

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
  enum Type : uint32_t { kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kString = 8, kList = 9 };

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
              HasSubstr("the unknown token is 9"));
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

}  // namespace
}  // namespace zoetrope::pipeline
