#include "pipeline/checks/rank_values.h"

#include <algorithm>

#include "parallel/shards.h"

namespace zoetrope::pipeline {

using reference::Rows;

// Its shards may change between steps.
parallel::ContextLayout RankValues::context_of(int64_t step) const {
  parallel::ContextLayout context = layout_.of_sequence();
  context.shard_weights.clear();
  if (const ForwardRecord::Value* shards = ranks_.front()->find(step, "shard_weights")) {
    const auto* weights = view_of(*shards).data<int32_t>();
    context.shard_weights.assign(weights, weights + shards->features);
  }
  return context;
}

std::vector<RankValues::Piece> RankValues::pieces(int64_t step, const Recorded& recorded, int64_t sample,
                                                  IndexRange tokens) const {
  const int64_t local = plan_.samples() / layout_.data, at = sample % local;
  const auto data = static_cast<int>(sample / local);
  const bool of_heads = recorded.spread == Spread::kTokensOfHeads;
  if (!of_heads && recorded.spread != Spread::kTokens) return shared(step, recorded, data, at, local);
  std::vector<Piece> all;
  const parallel::ContextLayout context = context_of(step);
  for (int c = 0; c < context.ranks(); ++c) {
    const IndexRange shard = parallel::token_shard(plan_.tokens, context, c);
    const int64_t begin = std::clamp(tokens.begin, shard.begin, shard.end),
                  end = std::clamp(tokens.end, shard.begin, shard.end);
    if (begin == end) continue;  // then nothing was shown
    int64_t feature = 0;
    for (int t = 0; t < (of_heads ? layout_.tensor : 1); ++t) {
      const int rank = layout_.rank_of(data, c, t);
      const ForwardRecord::Value* value = ranks_[static_cast<size_t>(rank)]->find(step, recorded.name);
      const int64_t row = at * (end - begin);
      const bool has = value != nullptr && row + (end - begin) <= value->rows;
      all.push_back({rank, has ? value : nullptr, row, end - begin, begin - tokens.begin, feature});
      if (has) feature += value->features;
    }
  }
  return all;
}

std::vector<RankValues::Piece> RankValues::shared(int64_t step, const Recorded& recorded, int data, int64_t at,
                                                  int64_t local) const {
  std::vector<Piece> all;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (layout_.data_index(rank) != data) continue;
    const ForwardRecord::Value* value = ranks_[static_cast<size_t>(rank)]->find(step, recorded.name);
    if (value == nullptr) continue;
    const bool whole = recorded.spread == Spread::kWhole;
    const int64_t each = whole ? value->rows : value->rows / local;
    all.push_back({rank, value, whole ? 0 : at * each, each, 0, 0});
  }
  return all;
}

bool RankValues::is_complete(const std::vector<Piece>& pieces) {
  return !pieces.empty() &&
         std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.value != nullptr; });
}

const ForwardRecord::Value* RankValues::any(int64_t step, const std::string& name, int data) const {
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (layout_.data_index(rank) != data) continue;
    if (const ForwardRecord::Value* value = ranks_[static_cast<size_t>(rank)]->find(step, name)) return value;
  }
  return nullptr;
}

Rows RankValues::rows_of_piece(const Piece& piece) {
  return reference::rows_of(view_of(*piece.value).slice(0, piece.row, piece.row + piece.rows));
}

Rows RankValues::part_of(const Rows& all, const Piece& piece) {
  if (all.rows == 0) return {};
  Rows part(piece.value->features, piece.rows);
  for (int64_t f = 0; f < part.features; ++f)
    std::copy_n(all.feature(piece.feature + f) + piece.first, part.rows, part.feature(f));
  return part;
}

Rows RankValues::joined(const std::vector<Piece>& pieces) {
  int64_t rows = 0, features = 0;
  for (const Piece& piece : pieces) {
    rows = std::max(rows, piece.first + piece.rows);
    features = std::max(features, piece.feature + piece.value->features);
  }
  Rows all(features, rows);
  for (const Piece& piece : pieces) {
    const Rows part = rows_of_piece(piece);
    for (int64_t f = 0; f < part.features; ++f)
      std::copy_n(part.feature(f), part.rows, all.feature(piece.feature + f) + piece.first);
  }
  return all;
}

Rows RankValues::rows_at_tokens(const std::vector<Piece>& pieces, std::vector<int64_t> tokens, int64_t first_token) {
  for (int64_t& token : tokens) token -= first_token;
  return rows_at(joined(pieces), tokens);
}

}  // namespace zoetrope::pipeline
