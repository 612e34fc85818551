// Writes the program of program.h from the tables of exchange.h and ring.h.
#include "parallel/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "parallel/gather.h"

namespace zoetrope::parallel {
namespace {

class Generator {
 public:
  Generator(const Sizes& sizes, const ContextLayout& layout, Softmax softmax, int rank)
      : sizes_(sizes),
        layout_(layout),
        gathers_(softmax == Softmax::kFixedMax && layout.ring > 1),
        ring_index_(layout.ring_index(rank)),
        steps_(ring_schedule(sizes.tokens, layout, ring_index_)) {
    ZT_CHECK(sizes.key_tokens == 0 || layout.ranks() == 1, "cross-attention over {} ranks", layout.ranks());
    if (gathers_) holders_ = statistics_ranks(sizes.tokens, layout);
    program_.tokens = token_shard(sizes.tokens, layout, rank);
    program_.block = ring_block(sizes.tokens, layout, ring_index_);
    for (int chunk = 0; chunk < layout.head_chunks; ++chunk) {
      exchanges_.push_back(exchange_schedule(sizes, layout, rank, chunk));
      outputs_.push_back(output_schedule(sizes, layout, rank, chunk));
      book_chunk(chunk);
    }
    book_slots();
    if (sizes.kv_vector_bytes > 0) book_wide();
    reserve();
  }

  // An exchange is on its way before the one before it is waited for, and an output exchange is waited for after the
  // next chunk is computed: both travel during compute.
  AttentionProgram write() && {
    const bool group = layout_.ulysses > 1;
    if (layout_.ranks() > 1) add(Op::Kind::kPack, 0);
    if (program_.wide.bytes > 0) add(Op::Kind::kNarrow, 0);
    int arriving = 0, returning = 0, statistics = 0;
    if (group) arriving = post_exchange(0);
    else if (gathers_) statistics = post_statistics(0);
    for (int chunk = 0; chunk < layout_.head_chunks; ++chunk) {
      const bool last = chunk + 1 == layout_.head_chunks;
      int current = statistics;
      if (group) {
        const int arrived = arriving;
        if (!last) arriving = post_exchange(chunk + 1);
        wait(arrived);
        if (gathers_) current = post_statistics(chunk);
      } else if (gathers_ && !last) {
        // Without an exchange to wait for, the statistics of the next chunk travel while this one computes.
        statistics = post_statistics(chunk + 1);
      }
      attend(chunk, current);
      if (!group) continue;
      const int leaving = post_output(chunk);
      add(Op::Kind::kUnpackOwn, chunk);
      if (chunk > 0) unpack(chunk - 1, returning);
      returning = leaving;
    }
    if (group) unpack(layout_.head_chunks - 1, returning);
    return std::move(program_);
  }

 private:
  void add(Op::Kind kind, int chunk, int index = 0) { program_.ops.push_back({kind, chunk, index}); }
  // A transfer, whose sends and then receives are added next.
  int post(Transfer::Kind kind, int chunk) {
    const auto index = static_cast<int>(program_.transfers.size());
    add(Op::Kind::kPost, chunk, index);
    program_.transfers.push_back({kind, chunk, program_.messages.size(), 0, 0});
    return index;
  }
  void send(const Message& message) {
    program_.messages.push_back(message);
    ++program_.transfers.back().sends;
  }
  void receive(const Message& message) {
    program_.messages.push_back(message);
    ++program_.transfers.back().receives;
  }
  void wait(int transfer) { add(Op::Kind::kWait, program_.transfers[static_cast<size_t>(transfer)].chunk, transfer); }
  void fold(Op::Kind kind, int chunk, const RingStep& step) {
    add(kind, chunk, static_cast<int>(program_.folds.size()));
    program_.folds.push_back({chunk, program_.blocks.size(), 0});
    if (!program_.computes(chunk)) return;
    const ChunkBuffers& buffers = program_.chunks[static_cast<size_t>(chunk)];
    for (const Piece& piece : step.compute) {
      if (piece.tokens.empty()) continue;
      BufferRange at = slot(buffers, piece.slot);
      at.bytes = keys_bytes(piece.tokens, buffers.heads);
      program_.blocks.push_back({keys_of(piece.tokens), at});
      ++program_.folds.back().count;
    }
  }

  // The first hop is posted before the statistics are waited for, but after they were sent: behind a K/V block on the
  // same link they would be late.
  void attend(int chunk, int statistics) {
    if (layout_.ring == 1) return fold(Op::Kind::kAttend, chunk, steps_[0]);
    add(Op::Kind::kInit, chunk);
    for (size_t step = 0; step < steps_.size(); ++step) {
      const bool last = step + 1 == steps_.size();
      const int arriving = last ? 0 : post_hop(chunk, steps_[step]);
      if (gathers_ && step == 0) {
        wait(statistics);
        add(Op::Kind::kCombine, chunk);
      }
      fold(Op::Kind::kFold, chunk, steps_[step]);
      if (!last) wait(arriving);
    }
    add(Op::Kind::kFinish, chunk);
  }

  void unpack(int chunk, int transfer) {
    wait(transfer);
    add(Op::Kind::kUnpack, chunk);
  }

  // All but the messages of exchanges, so that a program is a handful of allocations.
  void reserve() {
    const size_t chunks = exchanges_.size(), hops = chunks * steps_.size();
    constexpr size_t kOpsOfStep = 3, kOpsOfChunk = 10, kTransfersOfChunk = 3;
    program_.ops.reserve(kOpsOfStep * hops + kOpsOfChunk * chunks);
    program_.transfers.reserve(hops + kTransfersOfChunk * chunks);
    program_.folds.reserve(hops);
    program_.blocks.reserve(2 * hops);
    program_.messages.reserve(4 * hops + chunks * 2 * holders_.size());
  }

  // ---- buffers ----

  BufferRange book(int64_t bytes) {
    program_.buffers.push_back(bytes);
    return {static_cast<int>(program_.buffers.size()) - 1, 0, bytes};
  }

  int64_t row_bytes(Region region, IndexRange heads) const { return segment_bytes(sizes_, {0, region, heads, {0, 1}}); }
  IndexRange keys_of(IndexRange tokens) const {
    return sizes_.key_tokens > 0 ? IndexRange{0, sizes_.key_tokens} : tokens;
  }
  int64_t keys_bytes(IndexRange tokens, IndexRange heads) const {
    return kv_bytes(sizes_, keys_of(tokens), heads.size());
  }
  // Of some tokens in a buffer whose first row is token `first`.
  BufferRange rows(const BufferRange& all, int64_t first, IndexRange tokens, int64_t row) const {
    return {all.buffer, all.offset + (tokens.begin - first) * row, tokens.size() * row};
  }

  enum class Of : uint8_t { kRows, kLogs };
  int64_t sum_bytes(const std::vector<Segment>& segments, Of what) const {
    int64_t bytes = 0;
    for (const Segment& segment : segments)
      if ((segment.region == Region::kLogSumExp) == (what == Of::kLogs)) bytes += segment_bytes(sizes_, segment);
    return bytes;
  }

  void book_chunk(int index) {
    const Exchange& exchange = exchanges_.back();
    ChunkBuffers& chunk = program_.chunks.emplace_back();
    chunk.heads = exchange.heads;
    const IndexRange block = program_.block, own = program_.tokens;
    const int64_t row = row_bytes(Region::kQ, chunk.heads);
    const int64_t o_bytes = layout_.ulysses > 1 ? block.size() * row : 0;
    chunk.o = book(std::max(sum_bytes(exchange.sends, Of::kRows), o_bytes));
    chunk.q = book(block.size() * row);
    const int64_t of_keys = keys_bytes(block, chunk.heads);
    chunk.kv = book(std::max(of_keys, sum_bytes(outputs_.back().receives, Of::kRows)));
    chunk.own_q = rows(chunk.q, block.begin, own, row);
    chunk.own_kv = {chunk.kv.buffer, (own.begin - block.begin) * row_bytes(Region::kKV, chunk.heads),
                    keys_bytes(own, chunk.heads)};
    if (layout_.ulysses > 1) chunk.own_o = rows(chunk.o, block.begin, own, row);
    chunk.o.bytes = o_bytes;
    chunk.kv.bytes = of_keys;
    if (sizes_.log_sum_exp && layout_.ulysses > 1) book_logs(chunk);
    if (!gathers_ || !program_.computes(index)) return;
    const int64_t bytes = statistics_bytes(sizes_, chunk.heads.size());
    chunk.combined = book(bytes);
    for (const int holder : holders_) {
      if (holder == ring_index_) chunk.own_record = static_cast<int>(chunk.records.size());
      chunk.records.push_back(book(bytes));
    }
  }

  void book_logs(ChunkBuffers& chunk) {
    const int64_t row = row_bytes(Region::kLogSumExp, chunk.heads), bytes = program_.block.size() * row;
    chunk.logs = book(bytes + sum_bytes(outputs_.back().receives, Of::kLogs));
    chunk.own_logs = rows(chunk.logs, program_.block.begin, program_.tokens, row);
    chunk.logs.bytes = bytes;
  }

  // For the first chunk, which has the most heads.
  void book_slots() {
    std::array<int64_t, kSlots> most{};
    for (const RingStep& step : steps_)
      for (const Hop& receive : step.receives) {
        int64_t& bytes = most[static_cast<size_t>(receive.slot)];
        bytes = std::max(bytes, kv_bytes(sizes_, receive.tokens, program_.chunks[0].heads.size()));
      }
    for (size_t slot = 0; slot < most.size(); ++slot)
      if (most[slot] > 0) slots_[slot] = book(most[slot]).buffer;
  }

  // For the own tokens of all heads, and for the largest block of a chunk; the first chunk has the most heads. All
  // ranks have it, for all have the same ops.
  void book_wide() {
    const auto bytes = [&](int64_t tokens, int64_t heads) {
      return tokens * 2 * sizes_.batch * heads * sizes_.vector_bytes();
    };
    const int64_t own = bytes(program_.tokens.size(), sizes_.heads);
    int64_t most = 1;
    if (program_.computes(0))
      for (const RingStep& step : steps_)
        for (const Piece& piece : step.compute)
          most = std::max(most, bytes(piece.tokens.size(), program_.chunks[0].heads.size()));
    program_.wide = book(std::max(own, most));
    program_.own_wide = {program_.wide.buffer, 0, own};
  }

  // ---- transfers ----

  static Message message(const Segment& segment, const BufferRange& at) {
    return {segment.peer, segment.region, segment.heads, segment.tokens, at};
  }

  // Messages out of `out`, one behind the other; arrivals straight into q and kv.
  int post_exchange(int index) {
    const Exchange& table = exchanges_[static_cast<size_t>(index)];
    const ChunkBuffers& chunk = program_.chunks[static_cast<size_t>(index)];
    const int transfer = post(Transfer::Kind::kExchange, index);
    BufferRange next{chunk.o.buffer, 0, 0};
    for (const Segment& segment : table.sends) {
      next.bytes = segment_bytes(sizes_, segment);
      send(message(segment, next));
      next.offset += next.bytes;
    }
    for (const Segment& segment : table.receives) {
      const BufferRange& all = segment.region == Region::kQ ? chunk.q : chunk.kv;
      const int64_t row = row_bytes(segment.region, segment.heads);
      receive(message(segment, rows(all, program_.block.begin, segment.tokens, row)));
    }
    return transfer;
  }

  // o and the log-sum-exp leave from where they are finished; head shares of the own tokens arrive in kv and behind the
  // rank's own logs, one behind the other.
  int post_output(int index) {
    const Exchange& table = outputs_[static_cast<size_t>(index)];
    const ChunkBuffers& chunk = program_.chunks[static_cast<size_t>(index)];
    const int transfer = post(Transfer::Kind::kOutput, index);
    for (const Segment& segment : table.sends) {
      const BufferRange& from = segment.region == Region::kO ? chunk.o : chunk.logs;
      const int64_t row = row_bytes(segment.region, segment.heads);
      send(message(segment, rows(from, program_.block.begin, segment.tokens, row)));
    }
    BufferRange next_o{chunk.kv.buffer, 0, 0}, next_logs{chunk.logs.buffer, chunk.logs.bytes, 0};
    for (const Segment& segment : table.receives) {
      BufferRange& next = segment.region == Region::kO ? next_o : next_logs;
      next.bytes = segment_bytes(sizes_, segment);
      receive(message(segment, next));
      next.offset += next.bytes;
    }
    return transfer;
  }

  int post_statistics(int index) {
    add(Op::Kind::kStatistics, index);
    const ChunkBuffers& chunk = program_.chunks[static_cast<size_t>(index)];
    const int transfer = post(Transfer::Kind::kStatistics, index);
    if (chunk.records.empty()) return transfer;
    const BufferRange& own = chunk.records[static_cast<size_t>(chunk.own_record)];
    for (const int holder : holders_)
      if (holder != ring_index_) send({holder, Region::kStatistics, chunk.heads, program_.block, own});
    for (size_t i = 0; i < holders_.size(); ++i) {
      const IndexRange keys = ring_block(sizes_.tokens, layout_, holders_[i]);
      if (holders_[i] != ring_index_) receive({holders_[i], Region::kStatistics, chunk.heads, keys, chunk.records[i]});
    }
    return transfer;
  }

  // A half leaves from the middle of its block; whatever arrives does so at the start of its slot.
  int post_hop(int index, const RingStep& step) {
    const ChunkBuffers& chunk = program_.chunks[static_cast<size_t>(index)];
    const int transfer = post(Transfer::Kind::kHop, index);
    if (chunk.heads.empty()) return transfer;
    const int64_t row = row_bytes(Region::kKV, chunk.heads);
    const auto of = [&](const Hop& hop, int64_t first) -> Message {
      return {hop.peer, Region::kKV, chunk.heads, hop.tokens, rows(slot(chunk, hop.slot), first, hop.tokens, row)};
    };
    for (const Hop& hop : step.sends)
      if (!hop.tokens.empty()) send(of(hop, ring_block(sizes_.tokens, layout_, hop.block).begin));
    for (const Hop& hop : step.receives)
      if (!hop.tokens.empty()) receive(of(hop, hop.tokens.begin));
    return transfer;
  }

  BufferRange slot(const ChunkBuffers& chunk, int slot) const {
    return slot == kOwnSlot ? chunk.kv : BufferRange{slots_[static_cast<size_t>(slot)], 0, 0};
  }

  Sizes sizes_;
  ContextLayout layout_;
  bool gathers_;
  int ring_index_;
  std::vector<RingStep> steps_;
  std::vector<int> holders_;                   // ring indices that have keys, where statistics are gathered
  std::vector<Exchange> exchanges_, outputs_;  // by chunk
  std::array<int, kSlots> slots_{};            // buffers
  AttentionProgram program_;
};

}  // namespace

const char* transfer_name(Transfer::Kind kind) {
  switch (kind) {
    case Transfer::Kind::kExchange:
      return "ulysses exchange";
    case Transfer::Kind::kStatistics:
      return "ring statistics";
    case Transfer::Kind::kHop:
      return "ring hop";
    case Transfer::Kind::kOutput:
      return "ulysses output exchange";
    case Transfer::Kind::kGather:
      return "key gather";
  }
  return "?";
}

int rank_of_peer(const ContextLayout& layout, const Transfer& transfer, int rank, int peer) {
  if (transfer.kind == Transfer::Kind::kGather) return peer;
  return transfer.on_ring() ? layout.rank_of(peer, layout.ulysses_index(rank))
                            : layout.rank_of(layout.ring_index(rank), peer);
}

AttentionProgram attention_program(const Sizes& sizes, const ContextLayout& layout, Softmax softmax, int rank) {
  if (layout.gather > 1) return gather_program(sizes, layout, rank);
  Sizes sent = sizes;
  if (layout.ranks() == 1) sent.kv_vector_bytes = 0;  // nothing travels
  return Generator(sent, layout, softmax, rank).write();
}

}  // namespace zoetrope::parallel
