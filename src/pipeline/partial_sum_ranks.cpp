#include "pipeline/partial_sum_ranks.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.h"
#include "base/index_range.h"

namespace zoetrope::pipeline {
namespace {

comm::Segment segment(int peer, float* data, int64_t count) {
  return {.peer = peer, .data = data, .bytes = static_cast<size_t>(count) * sizeof(float)};
}

}  // namespace

void PartialSumRanks::add_up(const TensorView& values) {
  ZT_CHECK(values.dtype() == DType::kF32 && values.contiguous());
  const int ranks = world_.size(), me = world_.rank();
  if (ranks == 1 || values.size() == 0) return;
  float* all = values.data<float>();
  const auto share = [&](int rank) { return split_range(values.size(), ranks, rank); };
  const IndexRange mine = share(me);
  if (!received_ || received_.size() < (ranks - 1) * mine.size()) {
    received_ = Tensor::uninitialized(DType::kF32, {(ranks - 1) * mine.size()});
  }
  // Of every other rank, in rank order.
  const auto from = [&](int rank) { return received_.data<float>() + (rank < me ? rank : rank - 1) * mine.size(); };

  std::vector<comm::Segment> sends, receives;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    sends.push_back(segment(rank, all + share(rank).begin, share(rank).size()));
    receives.push_back(segment(rank, from(rank), mine.size()));
  }
  world_.exchange(sends, receives, kSharesOperation).wait();
  float* own = all + mine.begin;
  constexpr int64_t kPiece = 4096;  // stays in cache while the ranks' values are added to it
  for (int64_t begin = 0; begin < mine.size(); begin += kPiece) {
    const int64_t count = std::min(kPiece, mine.size() - begin);
    float sum[kPiece];
    for (int rank = 0; rank < ranks; ++rank) {
      const float* value = (rank == me ? own : from(rank)) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = rank == 0 ? value[i] : sum[i] + value[i];
    }
    std::copy_n(sum, count, own + begin);
  }

  sends.clear();
  receives.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    sends.push_back(segment(rank, own, mine.size()));
    receives.push_back(segment(rank, all + share(rank).begin, share(rank).size()));
  }
  world_.exchange(sends, receives, kSumsOperation).wait();
}

}  // namespace zoetrope::pipeline
