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
#pragma once

#include <cstdint>
#include <vector>

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

// Global tokens of a rank.
constexpr IndexRange token_shard(int64_t tokens, int ranks, int rank) { return split_range(tokens, ranks, rank); }

// Global tokens of a Ulysses group, which are the keys that travel the ring as one block.
constexpr IndexRange ring_block(int64_t tokens, int ring, int index) { return split_range(tokens, ring, index); }

// Heads that a Ulysses rank attends; shares differ by at most one head and none is empty, since U ≤ H.
constexpr IndexRange head_share(int64_t heads, int ulysses, int index) { return split_range(heads, ulysses, index); }

// Group `chunk` of `chunks` of a share. The larger groups come first, so that for more chunks than heads the trailing
// ones are empty (split_range would leave holes between).
constexpr IndexRange head_chunk(IndexRange share, int chunks, int chunk) {
  const int64_t size = share.size() / chunks, larger = share.size() % chunks;
  const auto start = [&](int64_t index) { return share.begin + index * size + (index < larger ? index : larger); };
  return {start(chunk), start(chunk + 1)};
}

}  // namespace zoetrope::parallel
