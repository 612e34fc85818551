// The kinds of tokenizers behind Tokenizer. Only for tokenizer.cpp and the files that implement it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

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

// The steps of the `tokenizers` library, in the order text passes them.
class UnigramModel : public Tokenizer::Model {
 public:
  UnigramModel(Unigram model, Normalizer normalizer, PreTokenizer pre_tokenizer)
      : unigram(std::move(model)), normalize(std::move(normalizer)), pre_tokenize(std::move(pre_tokenizer)) {
    vocab_size = unigram.size();
  }

  std::vector<int32_t> pieces(std::string_view text) const override;

  Unigram unigram;
  Normalizer normalize;
  PreTokenizer pre_tokenize;
  AddedTokens raw_tokens;     // looked for in the text as it is
  AddedTokens normal_tokens;  // looked for after normalisation
};

std::unique_ptr<Tokenizer::Model> load_tokenizer_json(const std::filesystem::path& file);
std::unique_ptr<Tokenizer::Model> read_unigram_parts(const UnigramParts& parts, const std::string& where);
std::unique_ptr<Tokenizer::Model> read_sentencepiece(std::string_view bytes, const std::string& where);

}  // namespace zoetrope::text
