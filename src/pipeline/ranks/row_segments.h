// The rows of a tensor as ranks have them, for exchanges.
#pragma once

#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "base/index_range.h"

namespace zoetrope::pipeline {

// Of x, contiguous: segment r is the rows that rank r of `ranks` has, an IndexRange as `rows_of(r)` gives it.
template <typename RowsOf>
std::vector<comm::Segment> row_segments(const TensorView& x, int ranks, RowsOf&& rows_of) {
  std::vector<comm::Segment> segments;
  for (int rank = 0; rank < ranks; ++rank) {
    const IndexRange rows = rows_of(rank);
    const TensorView part = x.slice(0, rows.begin, rows.end);
    segments.push_back({rank, part.raw(), part.bytes()});
  }
  return segments;
}

}  // namespace zoetrope::pipeline
