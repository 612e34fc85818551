// The "normalizer" and "pre_tokenizer" blocks of tokenizer.json, as functions. Not for the model or the added tokens.
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

}  // namespace zoetrope::text
