// Builds the tables of exchange.h.
#include "parallel/exchange.h"

namespace zoetrope::parallel {
namespace {

Exchange skeleton(const Sizes& sizes, Topology topology, int rank, int chunks, int chunk) {
  Exchange exchange;
  exchange.block = ring_block(sizes.tokens, topology.ring, topology.ring_index(rank));
  exchange.tokens = token_shard(sizes.tokens, topology.ranks(), rank);
  exchange.heads = head_chunk(head_share(sizes.heads, topology.ulysses, topology.ulysses_index(rank)), chunks, chunk);
  return exchange;
}

void add(std::vector<Segment>& segments, const Segment& segment) {
  if (!segment.heads.empty() && !segment.tokens.empty()) segments.push_back(segment);
}

// Calls body(peer, the peer's tokens, the peer's heads) for every other rank of the group, own index + 1 first: posted
// in this order, the U messages of a moment go to U different ranks.
template <typename Body>
void for_each_peer(const Sizes& sizes, Topology topology, int rank, int chunks, int chunk, Body&& body) {
  const int own = topology.ulysses_index(rank), ring = topology.ring_index(rank);
  for (int distance = 1; distance < topology.ulysses; ++distance) {
    const int peer = (own + distance) % topology.ulysses;
    body(peer, token_shard(sizes.tokens, topology.ranks(), topology.rank_of(ring, peer)),
         head_chunk(head_share(sizes.heads, topology.ulysses, peer), chunks, chunk));
  }
}

}  // namespace

Exchange exchange_schedule(const Sizes& sizes, Topology topology, int rank, int chunks, int chunk) {
  Exchange exchange = skeleton(sizes, topology, rank, chunks, chunk);
  for_each_peer(sizes, topology, rank, chunks, chunk, [&](int peer, IndexRange tokens, IndexRange heads) {
    for (const Region region : {Region::kQ, Region::kKV}) {
      add(exchange.sends, {peer, region, heads, exchange.tokens});
      add(exchange.receives, {peer, region, exchange.heads, tokens});
    }
  });
  return exchange;
}

Exchange return_schedule(const Sizes& sizes, Topology topology, int rank, int chunks, int chunk) {
  Exchange exchange = skeleton(sizes, topology, rank, chunks, chunk);
  for_each_peer(sizes, topology, rank, chunks, chunk, [&](int peer, IndexRange tokens, IndexRange heads) {
    add(exchange.sends, {peer, Region::kO, exchange.heads, tokens});
    add(exchange.receives, {peer, Region::kO, heads, exchange.tokens});
  });
  return exchange;
}

int64_t segment_bytes(const Sizes& sizes, const Segment& segment) {
  const int64_t rows = segment.region == Region::kKV ? 2 : 1;
  return segment.tokens.size() * rows * sizes.batch * segment.heads.size() * sizes.head_dim * sizes.element_bytes;
}

}  // namespace zoetrope::parallel
