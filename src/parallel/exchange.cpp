// Builds the tables of exchange.h.
#include "parallel/exchange.h"

namespace zoetrope::parallel {
namespace {

Exchange skeleton(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk, int segments_per_peer) {
  Exchange exchange;
  exchange.block = ring_block(sizes.tokens, layout, layout.ring_index(rank));
  exchange.tokens = token_shard(sizes.tokens, layout, rank);
  exchange.heads = head_chunk(head_share(sizes.heads, layout, layout.ulysses_index(rank)), layout.head_chunks, chunk);
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
         head_chunk(head_share(sizes.heads, layout, peer), layout.head_chunks, chunk));
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

int64_t segment_bytes(const Sizes& sizes, const Segment& segment) {
  if (segment.region == Region::kLogSumExp)
    return segment.tokens.size() * sizes.batch * segment.heads.size() * int64_t{sizeof(float)};
  const int64_t rows = segment.region == Region::kKV ? 2 : 1;
  return segment.tokens.size() * rows * sizes.batch * segment.heads.size() * sizes.head_dim * sizes.element_bytes;
}

}  // namespace zoetrope::parallel
