// What the ranks of a layout computed (forward_record.h), as values of whole samples: which rank has which rows and
// features of a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/index_range.h"

#include "models/reference/rows.h"
#include "parallel/layout.h"
#include "pipeline/checks/forward_record.h"
#include "pipeline/planning/plan.h"

namespace zoetrope::pipeline {

class RankValues {
 public:
  // All must outlive it.
  RankValues(const RunPlan& plan, const parallel::ParallelLayout& layout, std::vector<const ForwardRecord*> ranks)
      : plan_(plan), layout_(layout), ranks_(std::move(ranks)) {}

  // A value that ranks record under a name, and which rows of it a rank has: those of its tokens; the same, of its
  // heads' features; those of its samples, each of which has equally many; or all.
  enum class Spread : uint8_t { kTokens, kTokensOfHeads, kSamples, kWhole };
  struct Recorded {
    std::string name;
    Spread spread;
  };

  // Rows of a sample's value on one rank: `row` in its record, which are `rows` from `first` on of the sample, and
  // `feature` of all its features.
  struct Piece {
    int rank;
    const ForwardRecord::Value* value;
    int64_t row, rows, first, feature;
  };
  // `tokens`: those that have a row. Of a value without tokens, the same rows of every rank that recorded it. A rank
  // that lacks its rows has a piece without a value.
  std::vector<Piece> pieces(int64_t step, const Recorded& recorded, int64_t sample, IndexRange tokens) const;
  static bool is_complete(const std::vector<Piece>& pieces);
  // What any rank of a part of the data has; null where none has it.
  const ForwardRecord::Value* any(int64_t step, const std::string& name, int data) const;

  static reference::Rows rows_of_piece(const Piece& piece);
  // Of the rows of a whole sample those of a piece, and its features.
  static reference::Rows part_of(const reference::Rows& all, const Piece& piece);
  static reference::Rows joined(const std::vector<Piece>& pieces);
  // Rows of these tokens, where the first that has one is `first_token`.
  static reference::Rows rows_at_tokens(const std::vector<Piece>& pieces, std::vector<int64_t> tokens,
                                        int64_t first_token);

 private:
  parallel::ContextLayout context_of(int64_t step) const;
  std::vector<Piece> shared(int64_t step, const Recorded& recorded, int data, int64_t at, int64_t local) const;

  const RunPlan& plan_;
  const parallel::ParallelLayout& layout_;
  const std::vector<const ForwardRecord*> ranks_;
};

}  // namespace zoetrope::pipeline
