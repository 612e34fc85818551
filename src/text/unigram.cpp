// Viterbi search over piece scores with the tie-breaking and the treatment of unknown characters of the Hugging Face
// `tokenizers` library (models/unigram), whose ids the checkpoints were trained with.
#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"

namespace zoetrope::text {

namespace {

// The score of an unknown character relative to the worst piece.
constexpr double kUnknownPenalty = 10.0;

Trie make_trie(const std::vector<UnigramPiece>& pieces) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  entries.reserve(pieces.size());
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].matches) entries.emplace_back(pieces[id].text, static_cast<int32_t>(id));
  }
  return Trie(std::move(entries));
}

}  // namespace

Unigram::Unigram(std::vector<UnigramPiece> pieces, std::optional<int32_t> unk_id, bool byte_fallback)
    : trie_(make_trie(pieces)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
  double lowest = std::numeric_limits<double>::infinity();
  scores_.reserve(pieces.size());
  for (const UnigramPiece& piece : pieces) {
    scores_.push_back(piece.score);
    if (piece.matches) lowest = std::min(lowest, piece.score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& ids) const {
  // best[i]: the best segmentation of the first i bytes. A later candidate never replaces an equal one, so of equally
  // good segmentations the one whose last piece starts earliest is kept.
  struct Best {
    double score = 0;
    size_t start = std::string_view::npos;
    int32_t id = Trie::kNone;
  };
  std::vector<Best> best(word.size() + 1);
  const auto better = [&](size_t end, double score) {
    return best[end].start == std::string_view::npos || score > best[end].score;
  };
  for (size_t start = 0; start < word.size();) {
    const size_t char_bytes = std::max<size_t>(1, decode_char(word, start).bytes);
    const double so_far = best[start].score;
    bool single = false;  // whether this character is a piece by itself
    int32_t node = Trie::root();
    for (size_t end = start; end < word.size();) {
      node = trie_.step(node, static_cast<uint8_t>(word[end++]));
      if (node == Trie::kNone) break;
      const int32_t id = trie_.value(node);
      if (id == Trie::kNone) continue;
      const double score = so_far + scores_[static_cast<size_t>(id)];
      if (better(end, score)) best[end] = {score, start, id};
      single = single || end - start == char_bytes;
    }
    if (const double score = so_far + unknown_score_; !single && better(start + char_bytes, score)) {
      if (!unk_id_) fail("tokenizer.json: the text has a character outside the vocabulary and model.unk_id is missing");
      best[start + char_bytes] = {score, start, *unk_id_};
    }
    start += char_bytes;
  }

  // Walk back, merging neighbouring unknowns into one piece.
  struct Piece {
    size_t start, end;
    bool unknown;
  };
  std::vector<Piece> pieces;
  for (size_t end = word.size(); end > 0;) {
    const size_t start = best[end].start;
    const bool unknown = unk_id_ && best[end].id == *unk_id_;
    if (unknown && !pieces.empty() && pieces.back().unknown) {
      pieces.back().start = start;
    } else {
      pieces.push_back({start, end, unknown});
    }
    end = start;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    append_ids(word.substr(piece->start, piece->end - piece->start), ids);
  }
}

// By spelling, not by the id found above: merged unknowns may spell a piece.
void Unigram::append_ids(std::string_view piece, std::vector<int32_t>& ids) const {
  if (const int32_t id = trie_.find(piece); id != Trie::kNone) {
    ids.push_back(id);
    return;
  }
  if (byte_fallback_) {
    std::vector<int32_t> bytes;
    for (char c : piece) {
      const int32_t id = trie_.find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c)));
      if (id == Trie::kNone) break;
      bytes.push_back(id);
    }
    if (bytes.size() == piece.size()) {
      ids.insert(ids.end(), bytes.begin(), bytes.end());
      return;
    }
  }
  ids.push_back(*unk_id_);
}

}  // namespace zoetrope::text
