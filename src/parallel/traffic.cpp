// Sums the tables.
#include "parallel/traffic.h"

#include <algorithm>

namespace zoetrope::parallel {
namespace {

int64_t sum(const Sizes& sizes, const std::vector<Segment>& segments) {
  int64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment_bytes(sizes, segment);
  return bytes;
}

}  // namespace

Traffic traffic(const Sizes& sizes, const ContextLayout& layout, int rank, Softmax softmax) {
  Traffic total;
  const int64_t heads = head_share(sizes.heads, layout.ulysses, layout.ulysses_index(rank)).size();
  for (const auto& [out, back] : chunk_exchanges(sizes, layout, rank)) {
    total.exchange_sent += sum(sizes, out.sends);
    total.exchange_received += sum(sizes, out.receives);
    total.return_sent += sum(sizes, back.sends);
    total.return_received += sum(sizes, back.receives);
  }
  for (const RingStep& step : ring_schedule(sizes.tokens, layout, layout.ring_index(rank))) {
    for (const Transfer& transfer : step.sends) total.ring_sent += kv_bytes(sizes, transfer.tokens, heads);
    for (const Transfer& transfer : step.receives) total.ring_received += kv_bytes(sizes, transfer.tokens, heads);
  }
  if (softmax == Softmax::kFixedMax) {
    const std::vector<int> ranks = statistics_ranks(sizes.tokens, layout.ring);
    if (std::find(ranks.begin(), ranks.end(), layout.ring_index(rank)) != ranks.end())
      total.statistics_sent = total.statistics_received =
          (static_cast<int64_t>(ranks.size()) - 1) * statistics_bytes(sizes, heads);
  }
  const int64_t own = token_shard(sizes.tokens, layout.ranks(), rank).size() * sizes.batch * sizes.heads *
                      sizes.head_dim * sizes.element_bytes;
  // One rank reads its caller's q, k, v where they are; a ring alone needs only k and v side by side.
  total.packed = own * (layout.ulysses > 1 ? 3 : layout.ring > 1 ? 2 : 0);
  total.unpacked = layout.ulysses > 1 ? own : 0;
  return total;
}

}  // namespace zoetrope::parallel
