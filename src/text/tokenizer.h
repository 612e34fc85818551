// Prompt to token ids, as the text encoder was trained with them. Not for cleaning the prompt (prompt.h) and not for
// turning ids back into text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::text {

// A Unigram tokenizer by its parts, as GGUF files hold it. Text is normalised as T5's is: by the character map, with ▁
// for a space.
struct UnigramParts {
  enum class Use : uint8_t {
    kByScore,  // where it is part of the best segmentation
    kAlways,   // wherever the text spells it, before anything else (user defined pieces)
    kNever,    // whatever the text spells (control tokens, unused rows, bytes, the unknown token)
  };
  struct Piece {
    std::string text;
    float score = 0;  // log probability
    Use use = Use::kByScore;
  };
  std::vector<Piece> pieces;             // by id
  std::string precompiled_charsmap;      // SentencePiece's; empty: none
  bool add_space_prefix = true;          // ▁ before the first word
  bool remove_extra_whitespaces = true;  // spaces at the end, all but one of several in a row
  int32_t unknown_id = 3, eos_id = 1, pad_id = 0;
};

// Cheap to copy; safe to use from several threads at once.
class Tokenizer {
 public:
  // From a checkpoint's tokenizer folder: tokenizer.json if it is there (interpreted as the Hugging Face
  // `tokenizers` library does), else spiece.model through the SentencePiece library.
  // Or one of these files itself. Throws Error if neither is there or the file is damaged or of another kind.
  static Tokenizer load(const std::filesystem::path& path);
  // The bytes of a spiece.model; `where` they are from, for errors.
  static Tokenizer from_sentencepiece(std::string_view bytes, const std::string& where);

  // Throws Error for pieces that are not UTF-8 and ids that are none; `where` opens the sentence.
  static Tokenizer from_unigram(const UnigramParts& parts, const std::string& where);

  // The pieces, truncated so that with the special tokens (for UMT5: one </s> at the end) at most `max_length` ids
  // remain; no padding. Throws Error on text that is not UTF-8.
  std::vector<int32_t> encode(std::string_view clean_text, int64_t max_length = 512) const;

  // The end of the text that encode() truncates; empty if the text fits. Throws as encode() does.
  std::string_view cut_off(std::string_view clean_text, int64_t max_length) const;

  int32_t pad_id() const;
  int32_t eos_id() const;
  int64_t vocab_size() const;  // including added tokens

  class Model;  // implemented per kind of file

 private:
  int64_t most_pieces(int64_t max_length) const;

  explicit Tokenizer(std::shared_ptr<const Model> model) : model_(std::move(model)) {}
  std::shared_ptr<const Model> model_;
};

}  // namespace zoetrope::text
