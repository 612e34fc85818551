// A program made ready to run: its buffers allocated, its messages and key blocks as addresses, and for every head
// chunk the kernel with its state. Decides nothing: the program says what is where and moves when (parallel/program.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/workspace.h"
#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "parallel/program.h"

namespace zoetrope::attention {

// What every chunk of a plan shares.
struct ChunkContext {
  const Problem& problem;
  const Strategy& strategy;
  const parallel::AttentionProgram& program;
  Stream& stream;  // of the rank, where a plan times tiles
  kernels::TileSizes tiles{};
};

// The tile sizes of all chunks of a plan, from the problem of the first that this rank computes: chunks that differed
// in them would differ in their bits. {}, the table's, where it computes none.
kernels::TileSizes plan_tiles(const ChunkContext& context);

// The memory of a program's buffers.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const std::vector<int64_t>& bytes, Workspace& workspace);
  char* at(const parallel::BufferRange& range) const {
    return begin_[static_cast<size_t>(range.buffer)] + range.offset;
  }

 private:
  std::vector<char*> begin_;
};

// A place for rows of q, o or the log-sum-exp, or of k and v, of some heads of the own tokens.
struct Place {
  IndexRange heads;   // global
  TensorView first;   // [B, S_l, heads.size(), D or 1]: q, k, o or the log-sum-exp
  TensorView second;  // v, where it is one of keys and values
};

// Keys and values of a block, and where they travel in fewer bits what has arrived.
struct FoldedBlock {
  kernels::KeyBlock keys;             // [B, S_block, h, D]
  TensorView narrowed_k, narrowed_v;  // [B, S_block, h, bytes of one] U8, to be widened into the keys first; or empty
};

// Statistics of all keys, over a ring, for fixed-max: [B, h, 3 + D] F32 each.
struct RingStatistics {
  FoldedBlock keys;               // of this rank
  TensorView own;                 // their record
  std::vector<TensorView> parts;  // of every rank that has keys, in ring order, `own` among them
  TensorView all;                 // combined
};

struct Chunk {
  Chunk(const ChunkContext& context, int index, const Buffers& buffers);

  IndexRange heads;  // global
  Folded folded;     // with h heads
  TensorView q;      // [B, S_g, h, D]
  TensorView o;      // [B, S_g, h, D]; unused for U = 1, which finishes in the caller's tensor
  TensorView logs;   // [B, S_g, h, 1] F32, the log-sum-exp likewise; empty where it is not wanted
  std::optional<RingStatistics> statistics;
  std::unique_ptr<kernels::FlashAttention> kernel;  // none where this rank has no queries or the chunk no heads
  std::unique_ptr<kernels::FlashState> state;       // R > 1

  // Where the model writes, by heads: own part in place, the rest straight in the message. Keys and values in fewer
  // bits are narrowed into theirs, [B, S_l, heads, bytes of one] U8.
  std::vector<Place> q_places, kv_places;
  Place own_output, own_logs;                    // inside o and logs
  std::vector<Place> output_places, log_places;  // where the output exchange brings those of other ranks
};

// What a fold of `chunk` adds, in order; masks are set at each run.
std::vector<FoldedBlock> folded_blocks(const ChunkContext& context, const Chunk& chunk,
                                       std::span<const parallel::KeyBlock> fold, const Buffers& buffers);

// Where the model writes keys and values of all heads that travel in fewer bits; without heads where none do.
Place wide_keys(const ChunkContext& context, const Buffers& buffers);

std::vector<comm::Segment> segments(std::span<const parallel::Message> messages, const Buffers& buffers);

}  // namespace zoetrope::attention
