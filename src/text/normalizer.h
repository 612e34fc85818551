// The "normalizer" and "pre_tokenizer" blocks of tokenizer.json, as functions, and those that stand for SentencePiece's
// own settings. Not for the model or the added tokens.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace zoetrope::text {

// A part of the text; `first`: its first character is also the first of the prompt.
struct Word {
  std::string text;
  bool first = false;
};
using Normalizer = std::function<Word(Word)>;
using PreTokenizer = std::function<std::vector<Word>(std::vector<Word>)>;

// No block gives the identity. Throws Error on a type that is not supported.
Normalizer make_normalizer(const std::optional<JsonObject>& block);
PreTokenizer make_pre_tokenizer(const std::optional<JsonObject>& block);

// What the `tokenizers` library makes of a SentencePiece model. `charsmap`: its bytes; empty: nothing is rewritten.
enum class ExtraSpaces { kRemove, kKeep };
enum class SpacePrefix { kAdd, kNone };
Normalizer sentencepiece_normalizer(std::string_view charsmap, ExtraSpaces spaces, std::string_view where);
PreTokenizer sentencepiece_pre_tokenizer(SpacePrefix prefix);

}  // namespace zoetrope::text
