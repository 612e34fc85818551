#include "planner/attention_memory.h"

#include <algorithm>
#include <array>

#include "parallel/exchange.h"

namespace zoetrope::planner {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kLineFloats = 16;  // a row of the state begins on a cache line

int64_t sum(const parallel::Sizes& sizes, const std::vector<parallel::Segment>& segments) {
  int64_t bytes = 0;
  for (const parallel::Segment& segment : segments) bytes += segment_bytes(sizes, segment);
  return bytes;
}

// Buffers that ring blocks alternate in, for the largest chunk of heads.
Bytes ring_buffers(const parallel::Sizes& sizes, const RankUse& use, int index, int64_t heads) {
  std::array<int64_t, parallel::kSlots> most{};
  for (const auto& step : ring_schedule(sizes.tokens, use.context.ring, use.direction, index)) {
    for (const auto& receive : step.receives) {
      int64_t& slot = most[static_cast<size_t>(receive.slot)];
      slot = std::max(slot, kv_bytes(sizes, receive.tokens, heads));
    }
  }
  Bytes bytes;
  for (const int64_t slot : most) bytes += Bytes(slot);
  return bytes;
}

// o, l and m of every row, float32.
Bytes running_state(const parallel::Sizes& sizes, int64_t queries, int64_t heads) {
  const int64_t row = (sizes.head_dim + kLineFloats - 1) / kLineFloats * kLineFloats + 2;
  return Bytes(sizes.batch * heads) * queries * (row * kFloat);
}

Bytes chunk_buffers(const parallel::Sizes& sizes, const RankUse& use, int rank, int chunk) {
  const auto out = exchange_schedule(sizes, use.context, rank, use.head_chunks, chunk);
  const auto back = return_schedule(sizes, use.context, rank, use.head_chunks, chunk);
  const Bytes q = Bytes(sizes.batch * out.heads.size() * sizes.head_dim * sizes.element_bytes) * out.block.size();
  Bytes bytes = q + std::max(q * 2, Bytes(sum(sizes, back.receives)));
  bytes += std::max(Bytes(sum(sizes, out.sends)), use.context.ulysses > 1 ? q : Bytes());
  if (use.context.ring == 1 || out.block.empty() || out.heads.empty()) return bytes;
  if (use.fixed_max) {
    const auto parts = static_cast<int64_t>(parallel::statistics_ranks(sizes.tokens, use.context.ring).size());
    bytes += Bytes(parallel::statistics_bytes(sizes, out.heads.size())) * (parts + 1);
  }
  return bytes + running_state(sizes, out.block.size(), out.heads.size());
}

}  // namespace

Bytes attention_workspace(const parallel::Sizes& sizes, const RankUse& use, int rank) {
  const IndexRange share = parallel::head_share(sizes.heads, use.context.ulysses, use.context.ulysses_index(rank));
  Bytes bytes =
      ring_buffers(sizes, use, use.context.ring_index(rank), parallel::head_chunk(share, use.head_chunks, 0).size());
  for (int chunk = 0; chunk < use.head_chunks; ++chunk) bytes += chunk_buffers(sizes, use, rank, chunk);
  return bytes;
}

}  // namespace zoetrope::planner
