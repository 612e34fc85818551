#include "planner/attention_memory.h"

#include <algorithm>
#include <array>

#include "parallel/exchange.h"
#include "parallel/ring.h"

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
Bytes ring_buffers(const parallel::Sizes& sizes, const parallel::ContextLayout& layout, int index, int64_t heads) {
  std::array<int64_t, parallel::kSlots> most{};
  for (const auto& step : ring_schedule(sizes.tokens, layout, index)) {
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

Bytes chunk_buffers(const parallel::Sizes& sizes, const parallel::ContextLayout& layout, parallel::Softmax softmax,
                    const parallel::ChunkExchanges& chunk) {
  const auto& [out, back] = chunk;
  const Bytes q = Bytes(sizes.batch * out.heads.size() * sizes.head_dim * sizes.element_bytes) * out.block.size();
  Bytes bytes = q + std::max(q * 2, Bytes(sum(sizes, back.receives)));
  bytes += std::max(Bytes(sum(sizes, out.sends)), layout.ulysses > 1 ? q : Bytes());
  if (layout.ring == 1 || out.block.empty() || out.heads.empty()) return bytes;
  if (softmax == parallel::Softmax::kFixedMax) {
    const auto parts = static_cast<int64_t>(parallel::statistics_ranks(sizes.tokens, layout.ring).size());
    bytes += Bytes(parallel::statistics_bytes(sizes, out.heads.size())) * (parts + 1);
  }
  return bytes + running_state(sizes, out.block.size(), out.heads.size());
}

}  // namespace

Bytes attention_workspace(const parallel::Sizes& sizes, const parallel::ContextLayout& layout,
                          parallel::Softmax softmax, int rank) {
  const std::vector<parallel::ChunkExchanges> chunks = chunk_exchanges(sizes, layout, rank);
  Bytes bytes = ring_buffers(sizes, layout, layout.ring_index(rank), chunks.front().there.heads.size());
  for (const parallel::ChunkExchanges& chunk : chunks) bytes += chunk_buffers(sizes, layout, softmax, chunk);
  return bytes;
}

}  // namespace zoetrope::planner
