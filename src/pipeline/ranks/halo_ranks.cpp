#include "pipeline/ranks/halo_ranks.h"

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "base/index_range.h"

namespace zoetrope::pipeline {

using comm::Segment;

void HaloRanks::exchange(const TensorView& first, const TensorView& last, const TensorView& above,
                         const TensorView& below) {
  for (const TensorView* row : {&first, &last, &above, &below}) ZT_CHECK(!*row || row->contiguous());
  Segment sends[2], receives[2];
  size_t count = 0;
  const auto with = [&](int peer, const TensorView& mine, const TensorView& theirs) {
    ZT_CHECK(mine.bytes() == theirs.bytes());
    sends[count] = {peer, mine.raw(), mine.bytes()};
    receives[count] = {peer, theirs.raw(), theirs.bytes()};
    ++count;
  };
  if (part() > 0) with(part() - 1, first, above);
  if (part() + 1 < parts()) with(part() + 1, last, below);
  if (count > 0) ranks_.exchange({sends, count}, {receives, count}, kHaloRows).wait();
}

void HaloRanks::gather_rows(const TensorView& mine, IndexRange own, const TensorView& all) {
  ZT_CHECK(mine.contiguous() && all.contiguous() && mine.extent(0) == own.size());
  // Every rank says which rows it has, so nothing here depends on how rows are divided. 16 bytes next to an
  // attention over the whole frame.
  std::vector<IndexRange> ranges(static_cast<size_t>(parts()));
  ranks_.all_gather(&own, ranges.data(), sizeof own, kGatherRows);
  std::vector<Segment> receives;
  int64_t next = 0;
  for (int peer = 0; peer < parts(); ++peer) {
    const IndexRange rows = ranges[static_cast<size_t>(peer)];
    ZT_CHECK(rows.begin == next && rows.end <= all.extent(0), "rows {} to {}", rows.begin, rows.end);
    next = rows.end;
    const TensorView place = all.slice(0, rows.begin, rows.end);
    receives.push_back({peer, place.raw(), place.bytes()});
  }
  ZT_CHECK(next == all.extent(0));
  ranks_.all_gather_v({part(), mine.raw(), mine.bytes()}, receives, kGatherRows);
}

IndexRange rows_of_part(int64_t rows, int parts, int part) { return split_range(rows, parts, part); }

void FrameGather::post(Stream& stream, const TensorView& mine, const TensorView& whole) {
  wait();
  const auto place = [&](int part) {
    const IndexRange rows = rows_of_part(rows_, ranks_.size(), part);
    return whole.slice(0, scale_ * rows.begin, scale_ * rows.end);
  };
  if (ranks_.rank() == 0) {
    std::vector<Segment> receives;
    for (int part = 1; part < ranks_.size(); ++part) {
      const TensorView rows = place(part);
      receives.push_back({part, rows.raw(), rows.bytes()});
    }
    if (!receives.empty()) work_ = ranks_.exchange({}, receives, kFrameRows);
    copy(stream, place(0), mine);  // while theirs arrive
  } else {
    if (!sent_ || !(sent_.shape() == mine.shape())) sent_ = Tensor::uninitialized(mine.dtype(), mine.shape());
    copy(stream, sent_, mine);
    const Segment send{0, sent_.data<void>(), sent_.view().bytes()};
    work_ = ranks_.exchange({&send, 1}, {}, kFrameRows);
  }
}

void FrameGather::wait() { work_.wait(); }

}  // namespace zoetrope::pipeline
