// The Ulysses exchange and the output exchange: which pieces of q, k, v and o travel between the U ranks of a group.
// Tables only; program.h says where the pieces lie and when they travel.
//
// Before, a rank holds its own tokens of all heads; after, all tokens of its group for its own heads. Group of U = 3,
// what rank 1 does (columns are head shares, rows are token shards; > sent, < received, · stays):
//
//             before: own row            after: own column
//             h0  h1  h2                 h0  h1  h2
//   t0      │            │             │     <      │      from rank 0
//   t1      │  >  ·   >  │             │     ·      │      own part, written in place
//   t2      │            │             │     <      │      from rank 2
//
// Destinations hold the batch folded into the heads, b·H_u + h, so that a token is one contiguous row:
//   Q  [S_group, B·H_u, D]        KV [S_group, 2, B·H_u, D]
// A message is a list of segments and each segment is a contiguous token range of one of the two: nothing is unpacked.
// The output exchange sends contiguous token ranges of O [S_group, B·H_u, D]; what arrives is one head share of the own
// tokens, [S_local, B·H_peer, D], to be unpacked into [B, S_local, H, D]. The log-sum-exp, where it is wanted, goes the
// same way as float32 [S_group, B·H_u].
#pragma once

#include <cstdint>
#include <vector>

#include "zoetrope/context_layout.h"

#include "parallel/shards.h"

namespace zoetrope::parallel {

enum class Region : uint8_t { kQ, kKV, kO, kLogSumExp, kStatistics };

// A piece on its way. Both ends list the same numbers.
struct Segment {
  int peer = 0;       // Ulysses index of the other end
  Region region{};    // KV rows hold a key and a value
  IndexRange heads;   // global heads, of every batch entry
  IndexRange tokens;  // global tokens
};

struct Exchange {
  IndexRange block;   // global tokens of the group
  IndexRange tokens;  // global tokens of this rank
  IndexRange heads;   // global heads of this rank in this chunk
  // In the order to post: by peer, Q before KV, O before the log-sum-exp. The own part is not listed. Empty segments
  // are left out at both ends.
  std::vector<Segment> sends;
  std::vector<Segment> receives;
};

// The exchange of one head chunk, before the attention: sends carry the own tokens of the peer's heads, receives the
// peer's tokens of the own heads.
Exchange exchange_schedule(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk = 0);

// The one after it: sends carry the peer's tokens of the own heads, receives the own tokens of the peer's heads.
Exchange output_schedule(const Sizes& sizes, const ContextLayout& layout, int rank, int chunk = 0);

// Of a key or value of one head as it travels, for Sizes::kv_vector_bytes: in bf16, or in int8 with a float32 for each
// 32 values, filled up to whole float32s (kernels/narrow/); 0 as computed.
int64_t kv_vector_bytes(KVExchange exchange, int64_t head_dim);

int64_t segment_bytes(const Sizes& sizes, const Segment& segment);

}  // namespace zoetrope::parallel
