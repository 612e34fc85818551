#include "pipeline/ranks/partial_sum_ranks.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.h"
#include "pipeline/ranks/row_segments.h"

namespace zoetrope::pipeline {
IndexRange PartialSumRanks::add_up_rows(Stream& stream, const TensorView& values) {
  ZT_CHECK(values.dtype() == DType::kF32 && values.contiguous() && values.rank() > 0);
  const int ranks = ranks_.size(), me = ranks_.rank();
  const auto share = [&](int rank) { return split_range(values.extent(0), ranks, rank); };
  const IndexRange mine = share(me);
  if (ranks == 1 || values.size() == 0) return mine;
  const int64_t width = values.size() / values.extent(0), count = mine.size() * width;
  if (!received_ || received_.size() < (ranks - 1) * count)
    received_ = Tensor::uninitialized(DType::kF32, {(ranks - 1) * count});
  // Of every other rank, in rank order.
  const auto from = [&](int rank) { return received_.data<float>() + (rank < me ? rank : rank - 1) * count; };

  std::vector<comm::Segment> sends = row_segments(values, ranks, share), receives;
  sends.erase(sends.begin() + me);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    receives.push_back({.peer = rank, .data = from(rank), .bytes = static_cast<size_t>(count) * sizeof(float)});
  }
  ranks_.exchange(sends, receives, operations_.shares).wait();
  float* own = values.data<float>() + mine.begin * width;
  constexpr int64_t kPiece = 4096;  // stays in cache while the ranks' values are added to it
  stream.team().parallel_for(ceil_div(count, kPiece), 1, [&](IndexRange pieces, int) {
    for (int64_t begin = pieces.begin * kPiece; begin < std::min(count, pieces.end * kPiece); begin += kPiece) {
      const int64_t size = std::min(kPiece, count - begin);
      float sum[kPiece];
      for (int rank = 0; rank < ranks; ++rank) {
        const float* value = (rank == me ? own : from(rank)) + begin;
        for (int64_t i = 0; i < size; ++i) sum[i] = rank == 0 ? value[i] : sum[i] + value[i];
      }
      std::copy_n(sum, size, own + begin);
    }
  });
  return mine;
}

void PartialSumRanks::gather_rows(const TensorView& rows) {
  ZT_CHECK(rows.contiguous() && rows.rank() > 0);
  const int ranks = ranks_.size();
  if (ranks == 1 || rows.size() == 0) return;
  const auto share = [&](int rank) { return split_range(rows.extent(0), ranks, rank); };
  ranks_.all_gather_in_place(row_segments(rows, ranks, share), operations_.sums);
}

}  // namespace zoetrope::pipeline
