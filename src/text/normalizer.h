// The "normalizer" and "pre_tokenizer" blocks of tokenizer.json, as functions. Not for the model or the added tokens.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::text {

// A part of the text; `first`: its first character is also the first of the prompt.
struct Word {
  std::string text;
  bool first = false;
};
using Normalizer = std::function<Word(Word)>;
using PreTokenizer = std::function<std::vector<Word>(std::vector<Word>)>;

// null gives the identity. Throws Error (the sentence opens with `where`) on a type that is not supported.
Normalizer make_normalizer(const nlohmann::json& block, const std::string& where);
PreTokenizer make_pre_tokenizer(const nlohmann::json& block, const std::string& where);

}  // namespace zoetrope::text
