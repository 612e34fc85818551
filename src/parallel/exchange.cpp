// Builds the tables of exchange.h.
#include "parallel/exchange.h"

#include "base/error.h"
#include "parallel/ring.h"

namespace zoetrope::parallel {
namespace {

Exchange skeleton(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk, int segments_per_peer) {
  Exchange exchange;
  exchange.block = ring_block(sizes.tokens, layout, layout.ring_index(rank));
  exchange.tokens = token_shard(sizes.tokens, layout, rank);
  exchange.heads = head_chunk(sizes.heads, layout, layout.ulysses_index(rank), chunk);
  const auto most = static_cast<size_t>((layout.ulysses - 1) * segments_per_peer);
  exchange.sends.reserve(most);
  exchange.receives.reserve(most);
  return exchange;
}

void add(std::vector<Segment>& segments, const Segment& segment) {
  if (!segment.heads.empty() && !segment.tokens.empty()) segments.push_back(segment);
}

// Calls body(peer, the peer's tokens, the peer's heads) for every other rank of the group, own index + 1 first: posted
// in this order, the U messages of a moment go to U different ranks.
template <typename Body>
void for_each_peer(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk, Body&& body) {
  const int own = layout.ulysses_index(rank), ring = layout.ring_index(rank);
  for (int distance = 1; distance < layout.ulysses; ++distance) {
    const int peer = (own + distance) % layout.ulysses;
    body(peer, token_shard(sizes.tokens, layout, layout.rank_of(ring, peer)),
         head_chunk(sizes.heads, layout, peer, chunk));
  }
}

}  // namespace

Exchange exchange_schedule(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk) {
  Exchange exchange = skeleton(sizes, layout, rank, chunk, 2);
  for_each_peer(sizes, layout, rank, chunk, [&](int peer, IndexRange tokens, IndexRange heads) {
    for (const Region region : {Region::kQ, Region::kKV}) {
      add(exchange.sends, {peer, region, heads, exchange.tokens});
      add(exchange.receives, {peer, region, exchange.heads, tokens});
    }
  });
  return exchange;
}

Exchange output_schedule(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk) {
  Exchange exchange = skeleton(sizes, layout, rank, chunk, sizes.log_sum_exp ? 2 : 1);
  for_each_peer(sizes, layout, rank, chunk, [&](int peer, IndexRange tokens, IndexRange heads) {
    for (const Region region : {Region::kO, Region::kLogSumExp}) {
      if (region == Region::kLogSumExp && !sizes.log_sum_exp) continue;
      add(exchange.sends, {peer, region, exchange.heads, tokens});
      add(exchange.receives, {peer, region, heads, exchange.tokens});
    }
  });
  return exchange;
}

int64_t kv_vector_bytes(KVExchange exchange, int64_t head_dim) {
  constexpr int64_t kFloat = 4, kBFloat16 = 2, kValuesOfScale = 32;
  switch (exchange) {
    case KVExchange::kAsComputed:
      return 0;
    case KVExchange::kBFloat16:
      return round_up(head_dim * kBFloat16, kFloat);
    case KVExchange::kInt8:
      return ceil_div(head_dim, kValuesOfScale) * kFloat + round_up(head_dim, kFloat);
  }
  ZT_CHECK(false, "exchange {}", static_cast<int>(exchange));
  return 0;
}

int64_t segment_bytes(const Sizes& sizes, const Segment& segment) {
  if (segment.region == Region::kLogSumExp)
    return segment.tokens.size() * sizes.batch * segment.heads.size() * int64_t{sizeof(float)};
  if (segment.region == Region::kKV) return kv_bytes(sizes, segment.tokens, segment.heads.size());
  return segment.tokens.size() * sizes.batch * segment.heads.size() * sizes.vector_bytes();
}

}  // namespace zoetrope::parallel
