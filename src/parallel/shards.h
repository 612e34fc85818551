// Who owns which tokens and which heads: the P = R·U ranks of the context axis seen as R ring blocks of U shards, and
// the head shares inside a Ulysses group. Pure arithmetic; nothing here moves or holds data.
//
// Ulysses innermost (rank c has ring index c / U and Ulysses index c % U), here P = 6 = ring 3 × Ulysses 2:
//
//   tokens   0 ──────────────────────────────────────────── S
//   shard    │ rank 0 │ rank 1 │ rank 2 │ rank 3 │ rank 4 │ rank 5 │     ⌊cS/P⌋ … ⌊(c+1)S/P⌋
//   block    │   ring index 0  │  ring index 1   │  ring index 2   │     ⌊rS/R⌋ … ⌊(r+1)S/R⌋
//
// A group's shards join to its block exactly, for every S, because ⌊rU·S/(RU)⌋ = ⌊rS/R⌋. Nothing is padded: shards
// differ by at most one token and are empty where S < P.
//
// With shard weights, c and P are sums of weights instead of ranks: of those before a rank, and of all. Heads go by the
// weights of a Ulysses index, summed over the ring, because keys of a head stay with that index all the way round it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "zoetrope/context_layout.h"

#include "base/index_range.h"

namespace zoetrope::parallel {

// Ulysses degrees that `ranks` ranks of a sequence can have: the divisors that are ≤ heads, ascending; never empty.
inline std::vector<int> legal_ulysses(int ranks, int64_t heads) {
  std::vector<int> legal;
  for (int u = 1; u <= ranks && u <= heads; ++u)
    if (ranks % u == 0) legal.push_back(u);
  return legal;
}

// The sizes of an attention: global, the same on every rank.
struct Sizes {
  int64_t batch = 1;
  int64_t tokens = 0;  // S, of the whole sequence
  int64_t heads = 1;
  int64_t head_dim = 0;
  int64_t element_bytes = 4;
  int64_t key_tokens = 0;    // of cross-attention, whole on every rank; 0: the keys are the sequence's
  bool log_sum_exp = false;  // is an output too
  // Of one head's key, or value, of a token as it travels between ranks; 0: as it is computed with.
  int64_t kv_vector_bytes = 0;

  int64_t vector_bytes() const { return head_dim * element_bytes; }
  int64_t sent_kv_vector_bytes() const { return kv_vector_bytes > 0 ? kv_vector_bytes : vector_bytes(); }
};

// The sum of the weights of the ranks from `begin` to `end`.
inline int64_t weight_of(const ContextLayout& layout, int begin, int end) {
  if (layout.shard_weights.empty()) return end - begin;
  int64_t sum = 0;
  for (int rank = begin; rank < end; ++rank) sum += layout.shard_weight(rank);
  return sum;
}

// Global tokens of the ranks from `begin` to `end`.
inline IndexRange tokens_of_ranks(int64_t tokens, const ContextLayout& layout, int begin, int end) {
  const int64_t before = weight_of(layout, 0, begin), own = weight_of(layout, begin, end);
  const int64_t all = before + own + weight_of(layout, end, layout.ranks());
  return {before * tokens / all, (before + own) * tokens / all};
}

// Global tokens of a rank.
inline IndexRange token_shard(int64_t tokens, const ContextLayout& layout, int rank) {
  return tokens_of_ranks(tokens, layout, rank, rank + 1);
}
// Of the rank with the most.
inline int64_t largest_token_shard(int64_t tokens, const ContextLayout& layout) {
  if (layout.shard_weights.empty()) return ceil_div(tokens, layout.ranks());
  int64_t most = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) most = std::max(most, token_shard(tokens, layout, rank).size());
  return most;
}

// Global tokens of a Ulysses group, which are the keys that travel the ring as one block.
inline IndexRange ring_block(int64_t tokens, const ContextLayout& layout, int index) {
  return tokens_of_ranks(tokens, layout, index * layout.ulysses, (index + 1) * layout.ulysses);
}

// Heads that a Ulysses rank attends. Without weights shares differ by at most one head; with weights the largest is as
// small as it can be in relation to its weight. None is empty, since U ≤ H.
IndexRange head_share(int64_t heads, const ContextLayout& layout, int index);

// Group `chunk` of `chunks` of a share. The larger groups come first, so that for more chunks than heads the trailing
// ones are empty (split_range would leave holes between).
constexpr IndexRange head_chunk(IndexRange share, int chunks, int chunk) {
  const int64_t size = share.size() / chunks, larger = share.size() % chunks;
  const auto start = [&](int64_t index) { return share.begin + index * size + (index < larger ? index : larger); };
  return {start(chunk), start(chunk + 1)};
}
// Group `chunk` of the heads that a Ulysses rank attends.
inline IndexRange head_chunk(int64_t heads, const ContextLayout& layout, int index, int chunk) {
  return head_chunk(head_share(heads, layout, index), layout.head_chunks, chunk);
}

}  // namespace zoetrope::parallel
