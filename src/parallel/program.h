// The order of one attention on one rank, as data: what is packed, posted, waited for, folded and unpacked, one after
// the other, and where in the rank's buffers it is. attention_program() makes it once per plan; the engine
// (attention/) executes it, the simulator (planner/) prices it, program_test.cpp holds its properties. A new strategy
// is another order of the same ops.
//
// Two head chunks over Ulysses × ring, fixed-max softmax (transfers in brackets, with their chunk):
//
//   Pack  Post [exchange 0]
//   chunk 0   Post [exchange 1]  Wait [exchange 0]  Statistics  Post [statistics 0]  Init
//               step 0    Post [hop 0]  Wait [statistics 0]  Combine  Fold  Wait [hop 0]
//               step 1 …  Post [hop 0]  Fold  Wait [hop 0]
//             Finish  Post [output 0]  UnpackOwn 0
//   chunk 1   Wait [exchange 1]  … the same …  Post [output 1]  UnpackOwn 1  Wait [output 0]  Unpack 0
//             Wait [output 1]  Unpack 1
//
// A gather is gather.h's: Pack  Post [gather]  Wait [gather]  Attend.
//
// All ranks have the same ops in the same order and number their transfers alike; what differs are messages and
// blocks. A rank without a part in an op (no tokens, no heads of the chunk, the end of an open chain) has none there.
//
// Keys and values that travel in fewer bits (Sizes::kv_vector_bytes) are narrowed by their rank, right after Pack,
// once: kv, slots and the messages hold them as they travel, and every hop sends on what it received. Whoever computes
// with a block, its own rank included, widens it first: all ranks attend the same keys.
//
// Buffers over time (S_g tokens of the group, S_l of this rank, h heads of a chunk):
//
//   out      q and kv of the own tokens for each peer   then  O [S_g, B·h, D], which the output exchange sends
//   q        Q [S_g, B·h, D]
//   kv       the own ring block [S_g, 2, B·h, D]        then  o of the own tokens from each peer
//   slots    ring blocks on their way [S_block, 2, B·h, D]; the chunks take turns in them
//   records  statistics of the keys of each ring rank [B, h, 3 + D], and of all
//   logs     where it is wanted and U > 1: the log-sum-exp, float32 [S_g, B·h], then that of the own tokens from each
//            peer, one behind the other
//   wide     where keys and values travel in fewer bits: those of the own tokens for all heads [S_l, 2, B·H, D], then
//            the block that is computed with, [S_block, 2, B·h, D]
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/exchange.h"
#include "parallel/ring.h"
#include "parallel/shards.h"

namespace zoetrope::parallel {

// Contiguous bytes of one of the program's buffers.
struct BufferRange {
  int buffer = 0;  // index into AttentionProgram::buffers
  int64_t offset = 0;
  int64_t bytes = 0;
};

// One contiguous piece of a transfer. Both ends list the same region, heads, tokens and bytes.
struct Message {
  int peer = 0;  // index in the transfer's group
  Region region{};
  IndexRange heads;   // global
  IndexRange tokens;  // global
  BufferRange at;     // sent from, received into
};

struct Transfer {
  enum class Kind : uint8_t {
    kExchange,    // q, k, v: tokens for heads inside the Ulysses group
    kStatistics,  // records about keys, from each ring rank that has some to each other
    kHop,         // K/V blocks along the ring
    kOutput,      // o and its log-sum-exp: heads for tokens, inside the Ulysses group
    kGather,      // K/V of every rank to every other
  };
  Kind kind{};
  int chunk = 0;
  size_t first = 0;  // of its messages in AttentionProgram::messages: sends, then receives, in the order to post
  size_t sends = 0;
  size_t receives = 0;

  // Peers are ring indices; else Ulysses indices, and in a gather ranks of the context.
  bool on_ring() const { return kind == Kind::kStatistics || kind == Kind::kHop; }
  // Every rank of the group that has a part sends the same to each other.
  bool to_all() const { return kind == Kind::kStatistics || kind == Kind::kGather; }
};

// The context rank that `peer` is in a transfer of `rank`.
int rank_of_peer(const ContextLayout& layout, const Transfer& transfer, int rank, int peer);

// As time-out messages and traces show it, measured and predicted.
const char* transfer_name(Transfer::Kind kind);

// Keys and values of some tokens.
struct KeyBlock {
  IndexRange keys;  // global
  BufferRange at;
};

struct Fold {
  int chunk = 0;
  size_t first = 0;  // of its blocks in AttentionProgram::blocks, in the order to fold
  size_t count = 0;
};

struct Op {
  enum class Kind : uint8_t {
    kPack,        // q, k, v of a caller with buffers of its own into q, kv and out, all chunks; models write there
    kNarrow,      // the own keys and values, from wide into kv and out as they travel, all chunks
    kPost,        // transfers[index]
    kWait,        // until all messages of transfers[index] are sent and received
    kStatistics,  // of the own keys
    kCombine,     // the records of all ring ranks into one
    kInit,        // an empty running state
    kFold,        // folds[index] into the running state
    kFinish,      // the running state into o
    kAttend,      // Init, Fold and Finish at once, without a state: folds[index] has all keys
    kUnpackOwn,   // the own heads of the own tokens into the caller's o
    kUnpack,      // those that the output exchange brought
  };
  Kind kind{};
  int chunk = 0;
  int index = 0;
};

struct ChunkBuffers {
  IndexRange heads;                  // global, of this rank in this chunk
  BufferRange q, kv, o;              // of all tokens of the block (kv of a gather: of all). o: U > 1; else the caller's
  BufferRange own_q, own_kv, own_o;  // of the own tokens in them
  BufferRange logs, own_logs;        // the log-sum-exp likewise; empty without it and for U = 1
  std::vector<BufferRange> records;  // of every rank that has keys, in ring order; empty without kCombine
  int own_record = 0;                // index into records
  BufferRange combined;
};

struct AttentionProgram {
  IndexRange tokens;             // global, of this rank
  IndexRange block;              // global, of its Ulysses group: its queries, and the keys it sends to others
  std::vector<int64_t> buffers;  // bytes of each
  BufferRange wide;              // empty where keys and values travel as they are computed with
  BufferRange own_wide;          // of the own tokens, in it
  std::vector<ChunkBuffers> chunks;
  std::vector<Transfer> transfers;  // in the order to post
  std::vector<Message> messages;
  std::vector<Fold> folds;
  std::vector<KeyBlock> blocks;
  std::vector<Op> ops;

  std::span<const Message> sends(const Transfer& t) const { return {messages.data() + t.first, t.sends}; }
  std::span<const Message> receives(const Transfer& t) const {
    return {messages.data() + t.first + t.sends, t.receives};
  }
  std::span<const KeyBlock> blocks_of(const Fold& fold) const { return {blocks.data() + fold.first, fold.count}; }

  // Whether this rank attends anything in a chunk.
  bool computes(int chunk) const { return !block.empty() && !chunks[static_cast<size_t>(chunk)].heads.empty(); }
};

// `rank` of the context axis. In cross-attention (Sizes::key_tokens) the layout has one rank.
AttentionProgram attention_program(const Sizes& sizes, const ContextLayout& layout, Softmax softmax, int rank);

}  // namespace zoetrope::parallel
