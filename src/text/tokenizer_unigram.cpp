// The steps of text through a Unigram tokenizer, which tokenizer.json describes and UnigramParts is made into.
#include <cstddef>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer_model.h"

namespace zoetrope::text {

namespace {

void check_parts(const UnigramParts& parts, const std::string& where) {
  const auto size = std::ssize(parts.pieces);
  for (const auto& [name, id] : {std::pair("unknown", parts.unknown_id), std::pair("closing", parts.eos_id),
                                 std::pair("padding", parts.pad_id)}) {
    if (id < 0 || id >= size) fail("{}: the id of the {} token is {}, but there are {} pieces", where, name, id, size);
  }
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    if (!decode_utf8(parts.pieces[i].text)) fail("{}: piece {} is not valid UTF-8", where, i);
  }
}

Unigram make_unigram(const UnigramParts& parts) {
  std::vector<UnigramPiece> pieces;
  pieces.reserve(parts.pieces.size());
  for (const UnigramParts::Piece& piece : parts.pieces) {
    const bool unknown = std::ssize(pieces) == parts.unknown_id;
    pieces.push_back({piece.text, piece.score, piece.use == UnigramParts::Use::kByScore && !unknown});
  }
  return {std::move(pieces), parts.unknown_id, /*byte_fallback=*/false};
}

AddedTokens always_used(const UnigramParts& parts) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    const UnigramParts::Piece& piece = parts.pieces[i];
    if (piece.use == UnigramParts::Use::kAlways) tokens.push_back({piece.text, static_cast<int32_t>(i)});
  }
  return AddedTokens(std::move(tokens));
}

}  // namespace

std::vector<int32_t> UnigramModel::pieces(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const Span& raw : raw_tokens.split(text)) {
    if (raw.id != Trie::kNone) {
      ids.push_back(raw.id);
      continue;
    }
    const Word normal = normalize({std::string(raw.text), raw.text.data() == text.data()});
    for (const Span& span : normal_tokens.split(normal.text)) {
      if (span.id != Trie::kNone) {
        ids.push_back(span.id);
        continue;
      }
      const bool first = normal.first && span.text.data() == normal.text.data();
      for (const Word& word : pre_tokenize({{std::string(span.text), first}})) unigram.encode(word.text, ids);
    }
  }
  return ids;
}

std::unique_ptr<Tokenizer::Model> read_unigram_parts(const UnigramParts& parts, const std::string& where) {
  check_parts(parts, where);
  auto model = std::make_unique<UnigramModel>(
      make_unigram(parts),
      sentencepiece_normalizer(parts.precompiled_charsmap,
                               parts.remove_extra_whitespaces ? ExtraSpaces::kRemove : ExtraSpaces::kKeep, where),
      sentencepiece_pre_tokenizer(parts.add_space_prefix ? SpacePrefix::kAdd : SpacePrefix::kNone));
  model->raw_tokens = always_used(parts);
  model->eos_id = parts.eos_id;
  model->pad_id = parts.pad_id;
  model->suffix = {parts.eos_id};
  return model;
}

}  // namespace zoetrope::text
