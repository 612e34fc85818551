// Tokens that are split off before the model sees the text: "</s>", "<extra_id_0>". Not for the model's own pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/trie.h"

namespace zoetrope::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no letter, digit or underscore is next to it
  bool lstrip = false;       // includes the spaces to its left
  bool rstrip = false;       // and to its right
};

// A part of the text, or a token found in it (id ≥ 0; `text` then includes its spaces).
struct Span {
  std::string_view text;
  int32_t id = Trie::kNone;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Leftmost, then longest. The spans of plain text are never empty.
  std::vector<Span> split(std::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;  // value: index into tokens_
};

}  // namespace zoetrope::text
