// Turns the program's ranges into pointers.
#include "attention/chunk.h"

#include <algorithm>

#include "attention/strategy.h"
#include "kernels/flash_attention/tile_search.h"

namespace zoetrope::attention {
namespace {

using parallel::AttentionProgram;
using parallel::BufferRange;
using parallel::ChunkBuffers;
using parallel::Message;
using parallel::Region;
using parallel::Transfer;

Folded folded_heads(const Problem& problem, int64_t heads, Region region = Region::kO) {
  if (region == Region::kLogSumExp) return {DType::kF32, problem.batch, heads, 1};
  return {problem.dtype, problem.batch, heads, problem.head_dim};
}

// What the kernel of a chunk computes: the queries of `heads` heads against the largest block of a fold.
kernels::FlashProblem flash_problem(const ChunkContext& context, int64_t heads) {
  const Problem& problem = context.problem;
  kernels::FlashProblem flash;
  flash.batch = problem.batch;
  flash.query_tokens = context.program.block.size();
  flash.key_tokens = 0;
  for (const parallel::KeyBlock& block : context.program.blocks)
    flash.key_tokens = std::max(flash.key_tokens, block.keys.size());
  flash.heads = heads;
  flash.head_dim = problem.head_dim;
  flash.dtype = problem.dtype;
  flash.scale = problem.scale;
  flash.mask = static_cast<kernels::MaskKind>(problem.mask);
  flash.implementation = context.strategy.kernel;
  flash.softmax =
      context.strategy.softmax == Softmax::kFixedMax ? kernels::Softmax::kFixedMax : kernels::Softmax::kOnline;
  flash.center_keys = context.strategy.k_smoothing;
  flash.int8 = context.strategy.attention_dtype == AttentionDtype::kInt8 && problem.key_tokens == 0;
  flash.int8_limit = context.strategy.attention_int8_limit;
  flash.tiles = context.tiles;
  return flash;
}

// Static casts between the two are legal only while they list the same kinds.
static_assert(static_cast<int>(MaskKind::kNone) == static_cast<int>(kernels::MaskKind::kNone));
static_assert(static_cast<int>(MaskKind::kKeyLengths) == static_cast<int>(kernels::MaskKind::kKeyLengths));
static_assert(static_cast<int>(MaskKind::kKeyMask) == static_cast<int>(kernels::MaskKind::kKeyMask));

bool narrows(const ChunkContext& context) { return context.program.wide.bytes > 0; }

// Rows of keys and values as they travel.
Folded sent_heads(const ChunkContext& context, int64_t heads) {
  if (!narrows(context)) return folded_heads(context.problem, heads);
  return {DType::kU8, context.problem.batch, heads,
          kernels::narrow_bytes(*narrow_format(context.strategy.kv_exchange), context.problem.head_dim)};
}

FoldedBlock folded_block(const ChunkContext& context, int64_t heads, const BufferRange& at, IndexRange keys,
                         const Buffers& buffers) {
  const Folded sent = sent_heads(context, heads), wide = folded_heads(context.problem, heads);
  char* rows = buffers.at(at);
  FoldedBlock block;
  if (narrows(context)) {
    block.narrowed_k = sent.view(rows, keys.size(), 2, 0);
    block.narrowed_v = sent.view(rows, keys.size(), 2, 1);
    rows = buffers.at(context.program.wide);
  }
  block.keys.k = wide.view(rows, keys.size(), 2, 0);
  block.keys.v = wide.view(rows, keys.size(), 2, 1);
  block.keys.first_key = keys.begin;
  return block;
}

RingStatistics ring_statistics(const ChunkContext& context, const ChunkBuffers& chunk, const Buffers& buffers) {
  const auto record = [&](const BufferRange& at) {
    return TensorView(buffers.at(at), DType::kF32,
                      {context.problem.batch, chunk.heads.size(), 3 + context.problem.head_dim});
  };
  RingStatistics statistics;
  statistics.keys = folded_block(context, chunk.heads.size(), chunk.kv, context.program.block, buffers);
  for (const BufferRange& at : chunk.records) statistics.parts.push_back(record(at));
  statistics.own = statistics.parts[static_cast<size_t>(chunk.own_record)];
  statistics.all = record(chunk.combined);
  return statistics;
}

}  // namespace

// The user's sizes come first, field by field; 0 leaves those of the implementation's table, which depend on dtype, D
// and S alone: all that a deterministic run may depend on. Others take the sizes tuned for this machine.
kernels::TileSizes plan_tiles(const ChunkContext& context) {
  const Strategy& strategy = context.strategy;
  const kernels::TileSizes wanted{std::min(strategy.block_q, kernels::kMostTileRows),
                                  std::min(strategy.block_kv, kernels::kMostTileKeys)};
  if (strategy.deterministic || wanted != kernels::TileSizes{}) return wanted;
  // The first chunk has the most heads: where it has none, no other has.
  if (!context.program.computes(0)) return wanted;
  const kernels::TileCache cache(kernels::TileCache::default_file());
  return tuned_tiles(flash_problem(context, context.program.chunks[0].heads.size()), context.stream, cache,
                     strategy.tile_search ? kernels::WhenUnknown::kSearch : kernels::WhenUnknown::kTable);
}

Buffers::Buffers(const std::vector<int64_t>& bytes, Workspace& workspace) {
  for (const int64_t size : bytes) begin_.push_back(workspace.book(size));
}

Chunk::Chunk(const ChunkContext& context, int index, const Buffers& buffers) {
  const Problem& problem = context.problem;
  const AttentionProgram& program = context.program;
  const ChunkBuffers& chunk = program.chunks[static_cast<size_t>(index)];
  heads = chunk.heads;
  folded = folded_heads(problem, heads.size());
  q = folded.view(buffers.at(chunk.q), program.block.size(), 1, 0);
  o = folded.view(buffers.at(chunk.o), program.block.size(), 1, 0);
  const auto place = [&](Region region, IndexRange of_heads, const BufferRange& at, int64_t tokens) {
    const Folded rows =
        region == Region::kKV ? sent_heads(context, of_heads.size()) : folded_heads(problem, of_heads.size(), region);
    const int parts = region == Region::kKV ? 2 : 1;
    Place made{of_heads, rows.view(buffers.at(at), tokens, parts, 0), {}};
    if (parts == 2) made.second = rows.view(buffers.at(at), tokens, 2, 1);
    return made;
  };
  for (const Transfer& transfer : program.transfers) {
    if (transfer.chunk != index) continue;
    if (transfer.kind == Transfer::Kind::kExchange) {
      for (const Message& send : program.sends(transfer)) {
        auto& places = send.region == Region::kQ ? q_places : kv_places;
        places.push_back(place(send.region, send.heads, send.at, send.tokens.size()));
      }
    } else if (transfer.kind == Transfer::Kind::kOutput) {
      for (const Message& receive : program.receives(transfer)) {
        auto& places = receive.region == Region::kO ? output_places : log_places;
        places.push_back(place(receive.region, receive.heads, receive.at, receive.tokens.size()));
      }
    }
  }
  const int64_t keys = problem.key_tokens > 0 ? problem.key_tokens : program.tokens.size();
  q_places.push_back(place(Region::kQ, heads, chunk.own_q, program.tokens.size()));
  kv_places.push_back(place(Region::kKV, heads, chunk.own_kv, keys));
  own_output = place(Region::kO, heads, chunk.own_o, program.tokens.size());
  if (chunk.logs.bytes > 0) {
    logs = place(Region::kLogSumExp, heads, chunk.logs, program.block.size()).first;
    own_logs = place(Region::kLogSumExp, heads, chunk.own_logs, program.tokens.size());
  }
  if (!chunk.records.empty()) statistics = ring_statistics(context, chunk, buffers);
  if (!program.computes(index)) return;
  kernel = std::make_unique<kernels::FlashAttention>(flash_problem(context, heads.size()));
}

std::vector<FoldedBlock> folded_blocks(const ChunkContext& context, const Chunk& chunk,
                                       std::span<const parallel::KeyBlock> fold, const Buffers& buffers) {
  std::vector<FoldedBlock> blocks;
  for (const parallel::KeyBlock& block : fold) {
    blocks.push_back(folded_block(context, chunk.heads.size(), block.at, block.keys, buffers));
    if (chunk.statistics) blocks.back().keys.statistics = chunk.statistics->all;
  }
  return blocks;
}

Place wide_keys(const ChunkContext& context, const Buffers& buffers) {
  if (!narrows(context)) return {};
  const IndexRange heads{0, context.problem.heads};
  const Folded rows = folded_heads(context.problem, heads.size());
  const int64_t tokens = context.program.tokens.size();
  char* at = buffers.at(context.program.own_wide);
  return {heads, rows.view(at, tokens, 2, 0), rows.view(at, tokens, 2, 1)};
}

std::vector<comm::Segment> segments(std::span<const Message> messages, const Buffers& buffers) {
  std::vector<comm::Segment> list;
  for (const Message& message : messages)
    list.push_back({message.peer, buffers.at(message.at), static_cast<size_t>(message.at.bytes)});
  return list;
}

}  // namespace zoetrope::attention
