// Tables into pointers.
#include "attention/chunk.h"

#include <algorithm>
#include <array>

#include "attention/strategy.h"
#include "base/error.h"
#include "kernels/flash_attention/tile_search.h"

namespace zoetrope::attention {
namespace {

using parallel::Region;

int parts_of(Region region) { return region == Region::kKV ? 2 : 1; }

int64_t sum_bytes(const parallel::Sizes& sizes, const std::vector<parallel::Segment>& segments) {
  int64_t bytes = 0;
  for (const auto& segment : segments) bytes += segment_bytes(sizes, segment);
  return bytes;
}

Folded with_heads(const Folded& folded, int64_t heads) {
  Folded other = folded;
  other.heads = heads;
  return other;
}

Place place_at(const Folded& folded, char* rows, IndexRange heads, int64_t tokens, Region region) {
  const Folded of_heads = with_heads(folded, heads.size());
  Place place{heads, of_heads.view(rows, tokens, parts_of(region), 0), {}};
  if (region == Region::kKV) place.second = of_heads.view(rows, tokens, 2, 1);
  return place;
}

// The keys that come with some of the own tokens: the same, or where the problem has keys of its own all of those.
IndexRange keys_with(const ChunkContext& context, IndexRange tokens) {
  return context.problem.key_tokens > 0 ? IndexRange{0, context.problem.key_tokens} : tokens;
}

// What the kernel of a chunk computes: `queries` rows of `heads` against the largest piece of a ring block.
kernels::FlashProblem flash_problem(const ChunkContext& context, int64_t queries, int64_t heads) {
  const Problem& problem = context.problem;
  kernels::FlashProblem flash;
  flash.batch = problem.batch;
  flash.query_tokens = queries;
  flash.key_tokens = 0;
  const parallel::ContextLayout& layout = context.layout;
  for (const auto& step : ring_schedule(problem.tokens, layout, layout.ring_index(context.rank)))
    for (const auto& piece : step.compute)
      if (!piece.tokens.empty()) flash.key_tokens = std::max(flash.key_tokens, keys_with(context, piece.tokens).size());
  flash.heads = heads;
  flash.head_dim = problem.head_dim;
  flash.dtype = problem.dtype;
  flash.scale = problem.scale;
  flash.mask = static_cast<kernels::MaskKind>(problem.mask);
  flash.implementation = context.strategy.kernel;
  flash.softmax =
      context.strategy.softmax == Softmax::kFixedMax ? kernels::Softmax::kFixedMax : kernels::Softmax::kOnline;
  flash.center_keys = context.strategy.k_smoothing;
  flash.tiles = context.tiles;
  return flash;
}

// Builds one chunk; the steps follow the life of its buffers.
class Builder {
 public:
  Builder(const ChunkContext& context, int index, Chunk& chunk)
      : context_(context),
        sizes_(sizes_of(context.problem)),
        chunk_(chunk),
        out_(exchange_schedule(sizes_, context.layout, context.rank, index)),
        back_(return_schedule(sizes_, context.layout, context.rank, index)) {
    const Problem& problem = context.problem;
    chunk_.heads = out_.heads;
    chunk_.folded = {problem.dtype, problem.batch, out_.heads.size(), problem.head_dim};
  }

  void book(Workspace& workspace) {
    const bool group = context_.layout.ulysses > 1;
    const int64_t o_bytes = group ? chunk_.folded.row_bytes(1) * out_.block.size() : 0;
    out_rows_ = workspace.book(std::max(sum_bytes(sizes_, out_.sends), o_bytes));
    q_rows_ = workspace.book(chunk_.folded.row_bytes(1) * out_.block.size());
    const int64_t kv_bytes = chunk_.folded.row_bytes(2) * keys_of(out_.block).size();
    kv_rows_ = workspace.book(std::max(kv_bytes, sum_bytes(sizes_, back_.receives)));
  }

  // The exchange: packed messages out of `out`, arrivals straight into `q` and `kv`.
  void exchange() {
    char* next = out_rows_;
    for (const auto& segment : out_.sends) {
      const int64_t bytes = segment_bytes(sizes_, segment);
      chunk_.exchange_sends.push_back(posted(segment.peer, next, bytes));
      places(segment.region).push_back(place(next, segment.heads, segment.tokens.size(), segment.region));
      next += bytes;
    }
    for (const auto& segment : out_.receives)
      chunk_.exchange_receives.push_back(
          posted(segment.peer, row(segment.region, segment.tokens), segment_bytes(sizes_, segment)));
    chunk_.q_places.push_back(place(row(Region::kQ, out_.tokens), out_.heads, out_.tokens.size(), Region::kQ));
    const int64_t keys = keys_of(out_.tokens).size();
    chunk_.kv_places.push_back(place(row(Region::kKV, out_.tokens), out_.heads, keys, Region::kKV));
    chunk_.q = chunk_.folded.view(q_rows_, out_.block.size(), 1, 0);
  }

  // Statistics that all blocks are folded with, where a ring spreads the keys. One rank's attend() takes its own.
  void statistics(Workspace& workspace) {
    if (context_.strategy.softmax != Softmax::kFixedMax || context_.layout.ring == 1 || !computes()) return;
    const int64_t bytes = parallel::statistics_bytes(sizes_, out_.heads.size());
    const auto book = [&] {
      return TensorView(workspace.book(bytes), DType::kF32,
                        {sizes_.batch, out_.heads.size(), 3 + context_.problem.head_dim});
    };
    RingStatistics& statistics = chunk_.statistics.emplace();
    statistics.all = book();
    const int self = context_.layout.ring_index(context_.rank);
    for (const int peer : parallel::statistics_ranks(context_.problem.tokens, context_.layout.ring)) {
      const TensorView& part = statistics.parts.emplace_back(book());
      if (peer == self) statistics.own = part;
      else statistics.receives.push_back(posted(peer, part.data<char>(), bytes));
    }
    for (const comm::Segment& receive : statistics.receives)
      statistics.sends.push_back(posted(receive.peer, statistics.own.data<char>(), bytes));
  }

  // The ring: blocks to fold and transfers to post, step by step. `slots` are shared by all chunks.
  void ring(const std::array<char*, parallel::kSlots>& slots) {
    const auto at = [&](int slot, int64_t row) {
      return (slot == parallel::kOwnSlot ? kv_rows_ : slots[static_cast<size_t>(slot)]) +
             row * chunk_.folded.row_bytes(2);
    };
    const int ring = context_.layout.ring, index = context_.layout.ring_index(context_.rank);
    for (const auto& step : ring_schedule(context_.problem.tokens, context_.layout, index)) {
      PostedStep& ready = chunk_.steps.emplace_back();
      for (const auto& piece : step.compute) {
        if (piece.tokens.empty()) continue;
        char* rows = at(piece.slot, 0);
        kernels::KeyBlock& block = ready.blocks.emplace_back();
        const IndexRange keys = keys_of(piece.tokens);
        block.k = chunk_.folded.view(rows, keys.size(), 2, 0);
        block.v = chunk_.folded.view(rows, keys.size(), 2, 1);
        block.first_key = keys.begin;
        if (chunk_.statistics) block.statistics = chunk_.statistics->all;
      }
      // A half leaves from the middle of its block; whatever arrives does so at the start of its slot.
      for (const auto& send : step.sends) {
        const int64_t first = parallel::ring_block(context_.problem.tokens, ring, send.block).begin;
        post(ready.sends, send, at(send.slot, send.tokens.begin - first));
      }
      for (const auto& receive : step.receives) post(ready.receives, receive, at(receive.slot, 0));
    }
  }

  void kernel() {
    if (!computes()) return;
    chunk_.kernel =
        std::make_unique<kernels::FlashAttention>(flash_problem(context_, out_.block.size(), out_.heads.size()));
    if (context_.layout.ring > 1) chunk_.state = chunk_.kernel->make_state();
  }

  // The way back: O leaves from `out`, head shares of the own tokens arrive in `kv`.
  void way_back() {
    if (context_.layout.ulysses == 1) return;
    chunk_.o = chunk_.folded.view(out_rows_, out_.block.size(), 1, 0);
    for (const auto& segment : back_.sends)
      chunk_.return_sends.push_back(
          posted(segment.peer, row(Region::kO, segment.tokens), segment_bytes(sizes_, segment)));
    char* next = kv_rows_;
    for (const auto& segment : back_.receives) {
      const int64_t bytes = segment_bytes(sizes_, segment);
      chunk_.return_receives.push_back(posted(segment.peer, next, bytes));
      chunk_.return_places.push_back(place(next, segment.heads, segment.tokens.size(), Region::kO));
      next += bytes;
    }
    chunk_.own_return = place(row(Region::kO, back_.tokens), back_.heads, back_.tokens.size(), Region::kO);
  }

 private:
  bool computes() const { return !out_.block.empty() && !out_.heads.empty(); }
  IndexRange keys_of(IndexRange tokens) const { return keys_with(context_, tokens); }
  comm::Segment posted(int peer, char* data, int64_t bytes) const { return {peer, data, static_cast<size_t>(bytes)}; }
  Place place(char* rows, IndexRange heads, int64_t tokens, Region region) const {
    return place_at(chunk_.folded, rows, heads, tokens, region);
  }
  std::vector<Place>& places(Region region) { return region == Region::kQ ? chunk_.q_places : chunk_.kv_places; }

  // Where global tokens begin in a buffer that holds the group's.
  char* row(Region region, IndexRange tokens) const {
    char* base = region == Region::kQ ? q_rows_ : region == Region::kKV ? kv_rows_ : out_rows_;
    return base + (tokens.begin - out_.block.begin) * chunk_.folded.row_bytes(parts_of(region));
  }

  void post(std::vector<comm::Segment>& list, const parallel::Transfer& transfer, char* data) const {
    const int64_t bytes = kv_bytes(sizes_, transfer.tokens, out_.heads.size());
    if (bytes > 0) list.push_back(posted(transfer.peer, data, bytes));
  }

  const ChunkContext& context_;
  parallel::Sizes sizes_;
  Chunk& chunk_;
  parallel::Exchange out_, back_;
  char* out_rows_ = nullptr;
  char* q_rows_ = nullptr;
  char* kv_rows_ = nullptr;
};

// Static casts between the two are legal only while they list the same kinds.
static_assert(static_cast<int>(MaskKind::kNone) == static_cast<int>(kernels::MaskKind::kNone));
static_assert(static_cast<int>(MaskKind::kKeyLengths) == static_cast<int>(kernels::MaskKind::kKeyLengths));
static_assert(static_cast<int>(MaskKind::kKeyMask) == static_cast<int>(kernels::MaskKind::kKeyMask));

}  // namespace

// The user's win, field by field; 0 leaves the table of the implementation, which knows dtype, D and S alone: all that
// a deterministic run may depend on. Others take what this machine was tuned to.
kernels::TileSizes plan_tiles(const ChunkContext& context) {
  const Strategy& strategy = context.strategy;
  const kernels::TileSizes wanted{strategy.block_q, strategy.block_kv};
  if (strategy.deterministic || wanted != kernels::TileSizes{}) return wanted;
  // The first chunk has the most heads: where it has none, no other has.
  const parallel::Exchange first = exchange_schedule(sizes_of(context.problem), context.layout, context.rank);
  if (first.block.empty() || first.heads.empty()) return wanted;
  const kernels::TileCache cache(kernels::TileCache::default_file());
  return tuned_tiles(flash_problem(context, first.block.size(), first.heads.size()), context.stream, cache,
                     strategy.tile_search ? kernels::WhenUnknown::kSearch : kernels::WhenUnknown::kTable);
}

RingSlots::RingSlots(const ChunkContext& context, int64_t most_heads, Workspace& workspace) {
  const parallel::Sizes sizes = sizes_of(context.problem);
  std::array<int64_t, parallel::kSlots> bytes{};
  for (const auto& step :
       ring_schedule(context.problem.tokens, context.layout, context.layout.ring_index(context.rank))) {
    for (const auto& receive : step.receives) {
      auto& most = bytes[static_cast<size_t>(receive.slot)];
      most = std::max(most, kv_bytes(sizes, receive.tokens, most_heads));
    }
  }
  for (size_t slot = 0; slot < rows.size(); ++slot)
    if (bytes[slot] > 0) rows[slot] = workspace.book(bytes[slot]);
}

Chunk::Chunk(const ChunkContext& context, int index, const RingSlots& slots, Workspace& workspace) {
  Builder builder(context, index, *this);
  builder.book(workspace);
  builder.exchange();
  builder.statistics(workspace);
  builder.ring(slots.rows);
  builder.kernel();
  builder.way_back();
}

}  // namespace zoetrope::attention
