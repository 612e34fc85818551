// The two kinds of tokenizer files behind Tokenizer. Only for tokenizer.cpp and the files that implement it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace zoetrope::text {

class Tokenizer::Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  // The ids of valid UTF-8 text, without special tokens, not truncated.
  virtual std::vector<int32_t> pieces(std::string_view text) const = 0;

  // Special tokens before and after the pieces.
  std::vector<int32_t> prefix, suffix;
  int32_t pad_id = 0;
  int32_t eos_id = 1;
  int64_t vocab_size = 0;
};

std::unique_ptr<Tokenizer::Model> load_tokenizer_json(const std::filesystem::path& file);
std::unique_ptr<Tokenizer::Model> read_unigram_parts(const UnigramParts& parts, const std::string& where);
std::unique_ptr<Tokenizer::Model> read_sentencepiece(std::string_view bytes, const std::string& where);

}  // namespace zoetrope::text
