// What the ranks of a layout computed (forward_record.h), as values of whole samples: which rank has which rows and
// features of a stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/index_range.h"

#include "models/wan/reference/forward_stages.h"
#include "parallel/layout.h"
#include "pipeline/forward_record.h"
#include "pipeline/plan.h"

namespace zoetrope::pipeline {

class RankValues {
 public:
  // `clean_tokens`: some have a timestep of their own. All must outlive it.
  RankValues(const RunPlan& plan, const parallel::ParallelLayout& layout, std::vector<const ForwardRecord*> ranks,
             bool clean_tokens)
      : plan_(plan), layout_(layout), ranks_(std::move(ranks)), clean_tokens_(clean_tokens) {}

  // Rows of a sample's value on one rank: `row` in its record, which are `rows` from `first` on of the sample, and
  // `feature` of all its features.
  struct Piece {
    int rank;
    const ForwardRecord::Value* value;
    int64_t row, rows, first, feature;
  };
  // `tokens`: those that have a row. Of what is made once for a prompt or a step, the same rows of every rank that made
  // it. A rank that lacks its rows has a piece without a value.
  std::vector<Piece> pieces(int64_t step, const wan::reference::Stage& stage, int64_t sample, IndexRange tokens) const;
  static bool is_complete(const std::vector<Piece>& pieces);
  // What any rank of a part of the data has; null where none has it.
  const ForwardRecord::Value* any(int64_t step, const std::string& name, int data) const;

  static wan::reference::Rows rows_of_piece(const Piece& piece);
  static wan::reference::Rows joined(const std::vector<Piece>& pieces);
  // Rows of these tokens, where the first that has one is `first_token`.
  static wan::reference::Rows rows_at_tokens(const std::vector<Piece>& pieces, std::vector<int64_t> tokens,
                                             int64_t first_token);

 private:
  parallel::ContextLayout context_of(int64_t step) const;
  std::vector<Piece> shared(int64_t step, const wan::reference::Stage& stage, int data, int64_t at,
                            int64_t local) const;

  const RunPlan& plan_;
  const parallel::ParallelLayout& layout_;
  const std::vector<const ForwardRecord*> ranks_;
  const bool clean_tokens_;
};

}  // namespace zoetrope::pipeline
