// The Unigram model: the most probable segmentation of a word into pieces of the vocabulary. Normalisation and
// pre-tokenisation come before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/trie.h"

namespace zoetrope::text {

struct UnigramPiece {
  std::string text;
  double score = 0;     // log probability
  bool matches = true;  // false: only an id, whatever the text says
};

class Unigram {
 public:
  // `unk_id`, if there is one, lies inside the vocabulary (the caller has checked).
  Unigram(std::vector<UnigramPiece> pieces, std::optional<int32_t> unk_id, bool byte_fallback);
  Unigram(Unigram&&) = default;  // the trie's keys are views into the pieces, used only while it is built

  // Appends the ids of one word (valid UTF-8).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  int32_t find(std::string_view piece) const { return trie_.find(piece); }
  int64_t size() const { return static_cast<int64_t>(scores_.size()); }

 private:
  void append_ids(std::string_view piece, std::vector<int32_t>& ids) const;

  std::vector<double> scores_;
  Trie trie_;
  std::optional<int32_t> unk_id_;
  bool byte_fallback_;
  double unknown_score_ = 0;
};

}  // namespace zoetrope::text
