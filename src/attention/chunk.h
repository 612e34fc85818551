// One head chunk of a plan, made ready to run: its buffers, what is posted when and from where, and the kernel with its
// state. Follows the tables of schedule/ to the letter and decides nothing; the order of things is the executor's
// (context_attention.cpp).
//
// Buffers, and what lies in them over time (S_g tokens of the group, S_l of this rank, h heads of this chunk):
//
//   out     q | kv parts of the own tokens for each peer   then  O [S_g, B·h, D], which the way back sends
//   q       Q [S_g, B·h, D]
//   kv      the own ring block [S_g, 2, B·h, D]            then  o of the own tokens from each peer
//   slots   ring blocks on their way [S_block, 2, B·h, D]
//   records statistics of the keys of each ring rank [B, h, 3 + D], and of all (fixed-max on a ring)
//
// Each reuse follows a wait for the transfers of the first use, on both ends.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/workspace.h"
#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "parallel/exchange.h"
#include "parallel/ring.h"

namespace zoetrope::attention {

// A place for q or o rows, or for k and v rows, of some heads of the own tokens.
struct Place {
  IndexRange heads;   // global
  TensorView first;   // [B, S_l, heads.size(), D]: q, k or o
  TensorView second;  // v, where it is one of keys and values
};

struct PostedStep {
  std::vector<kernels::KeyBlock> blocks;  // to fold in, in order; masks are set at each run
  std::vector<comm::Segment> sends, receives;
};

// Statistics of all keys, over a ring, for fixed-max.
struct RingStatistics {
  TensorView own;                 // [B, h, 3 + D] F32, as all here
  std::vector<TensorView> parts;  // of every rank that has keys, in ring order, `own` among them
  TensorView all;                 // combined
  std::vector<comm::Segment> sends, receives;
};

// What every chunk of a plan shares. With keys of their own (key_tokens) the problem is one rank's: its tokens are
// those of this rank, the layout has one rank.
struct ChunkContext {
  const Problem& problem;
  const Strategy& strategy;
  parallel::ContextLayout layout;
  int rank = 0;
  Stream& stream;  // of the rank, where a plan times tiles
  kernels::TileSizes tiles{};
};

// The tile sizes of all chunks of a plan, from the problem of the first that this rank computes: chunks that differed
// in them would differ in their bits. {}, the table's, where it computes none.
kernels::TileSizes plan_tiles(const ChunkContext& context);

// The buffers that ring blocks on their way alternate in; the chunks take turns.
struct RingSlots {
  RingSlots(const ChunkContext& context, int64_t most_heads, Workspace& workspace);
  std::array<char*, parallel::kSlots> rows{};  // null where the direction does not use it
};

struct Chunk {
  Chunk(const ChunkContext& context, int index, const RingSlots& slots, Workspace& workspace);

  IndexRange heads;  // global
  Folded folded;     // with h heads

  // Where the model writes, by heads: own part in place, the rest straight in the message.
  std::vector<Place> q_places, kv_places;
  std::vector<comm::Segment> exchange_sends, exchange_receives;

  TensorView q;                   // [B, S_g, h, D]
  std::vector<PostedStep> steps;  // one for R = 1
  std::optional<RingStatistics> statistics;
  TensorView o;  // [B, S_g, h, D] in `out`; unused for U = 1, which finishes in the caller's tensor
  std::unique_ptr<kernels::FlashAttention> kernel;  // none where this rank has no queries or the chunk no heads
  std::unique_ptr<kernels::FlashState> state;       // R > 1

  std::vector<comm::Segment> return_sends, return_receives;
  Place own_return;                  // inside o
  std::vector<Place> return_places;  // what arrives
};

}  // namespace zoetrope::attention
