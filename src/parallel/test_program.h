// For tests: what must hold of the programs of all ranks. Every property is a function that says what is wrong, or
// nothing.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/layout.h"
#include "parallel/program.h"

namespace zoetrope::parallel {

// A layout with even shards, and with several kinds of weights.
inline std::vector<ContextLayout> in_shards(const ContextLayout& layout) {
  std::vector<ContextLayout> layouts(layout.ranks() > 1 ? 3 : 1, layout);
  if (layout.ranks() == 1) return layouts;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    layouts[1].shard_weights.push_back(1 + 7 * rank % 4);
    layouts[2].shard_weights.push_back(rank == 1 ? kMostShardWeight : 1);
  }
  return layouts;
}

using Kind = Op::Kind;
using Programs = std::vector<AttentionProgram>;  // by rank

inline Programs make_programs(const Sizes& sizes, const ContextLayout& layout, Softmax softmax) {
  Programs programs;
  for (int rank = 0; rank < layout.ranks(); ++rank) programs.push_back(attention_program(sizes, layout, softmax, rank));
  return programs;
}

// All ranks have the same ops, and transfers of the same kind and chunk.
inline std::string order_differs(const Programs& programs) {
  const auto same = [](const Op& a, const Op& b) {
    return a.kind == b.kind && a.chunk == b.chunk && a.index == b.index;
  };
  const auto alike = [](const Transfer& a, const Transfer& b) { return a.kind == b.kind && a.chunk == b.chunk; };
  const AttentionProgram& first = programs[0];
  for (const AttentionProgram& other : programs) {
    if (!std::equal(first.ops.begin(), first.ops.end(), other.ops.begin(), other.ops.end(), same))
      return "a rank has other ops";
    if (!std::equal(first.transfers.begin(), first.transfers.end(), other.transfers.begin(), other.transfers.end(),
                    alike))
      return "a rank has other transfers";
  }
  return {};
}

// Every transfer is posted once and waited for once, in this order.
inline std::string wrongly_posted(const AttentionProgram& program) {
  std::vector<int> posts(program.transfers.size()), waits(program.transfers.size());
  for (const Op& op : program.ops) {
    const auto index = static_cast<size_t>(op.index);
    if (op.kind == Kind::kPost && ++posts[index] > 1) return fmt::format("transfer {} is posted twice", index);
    if (op.kind != Kind::kWait) continue;
    if (posts[index] == 0) return fmt::format("transfer {} is waited for before it is posted", index);
    if (++waits[index] > 1) return fmt::format("transfer {} is waited for twice", index);
  }
  for (size_t i = 0; i < posts.size(); ++i)
    if (posts[i] + waits[i] != 2) return fmt::format("transfer {} is posted or waited for never", i);
  return {};
}

// Messages of a pair of ranks match in the order they are posted: the n-th that one sends is the n-th the other
// expects.
inline std::string unmatched(const Programs& programs, const ContextLayout& layout) {
  using Key = std::tuple<bool, int, int>;  // group, from, to
  using Content = std::tuple<Transfer::Kind, int, Region, int64_t, int64_t, int64_t, int64_t, int64_t>;
  std::map<Key, std::vector<Content>> sent, expected;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const AttentionProgram& program = programs[static_cast<size_t>(rank)];
    for (const Op& op : program.ops) {
      if (op.kind != Kind::kPost) continue;
      const Transfer& t = program.transfers[static_cast<size_t>(op.index)];
      const auto of = [&](const Message& m) {
        return Content{t.kind, t.chunk, m.region, m.heads.begin, m.heads.end, m.tokens.begin, m.tokens.end, m.at.bytes};
      };
      const auto peer = [&](const Message& m) { return rank_of_peer(layout, t, rank, m.peer); };
      for (const Message& m : program.sends(t)) sent[{t.on_ring(), rank, peer(m)}].push_back(of(m));
      for (const Message& m : program.receives(t)) expected[{t.on_ring(), peer(m), rank}].push_back(of(m));
    }
  }
  for (const auto& [key, list] : sent)
    if (std::get<1>(key) == std::get<2>(key)) return "a rank sends to itself";
  return sent == expected ? "" : "what is sent is not what is expected";
}

// Every key is folded once per chunk, between Init and Finish or in one Attend.
inline std::string wrongly_folded(const AttentionProgram& program, int64_t keys) {
  for (int chunk = 0; chunk < static_cast<int>(program.chunks.size()); ++chunk) {
    std::vector<int> folded(static_cast<size_t>(keys));
    enum { kNothing, kOpen, kDone } state = kNothing;
    for (const Op& op : program.ops) {
      if (op.chunk != chunk) continue;
      if (op.kind == Kind::kInit || op.kind == Kind::kAttend) {
        if (state != kNothing) return "a state is begun twice";
        state = op.kind == Kind::kInit ? kOpen : kDone;
      }
      if (op.kind == Kind::kFinish) {
        if (state != kOpen) return "a state is finished that was not begun";
        state = kDone;
      }
      if (op.kind != Kind::kFold && op.kind != Kind::kAttend) continue;
      if (op.kind == Kind::kFold && state != kOpen) return "a fold outside of Init and Finish";
      const Fold& fold = program.folds[static_cast<size_t>(op.index)];
      if (fold.chunk != chunk) return "a fold of another chunk";
      for (const KeyBlock& block : program.blocks_of(fold))
        for (int64_t key = block.keys.begin; key < block.keys.end; ++key) ++folded[static_cast<size_t>(key)];
    }
    if (state != kDone) return "a chunk is not attended";
    const int times = program.computes(chunk) ? 1 : 0;
    for (size_t key = 0; key < folded.size(); ++key)
      if (folded[key] != times) return fmt::format("key {} is folded {} times in chunk {}", key, folded[key], chunk);
  }
  return {};
}

// What a row of a buffer holds: one token of some heads, or a record.
struct Row {
  Region region{};
  int64_t bytes = 0;
  IndexRange heads;
  int64_t token = 0;
  friend bool operator==(const Row&, const Row&) = default;
};

// Follows the buffers of one rank through its program: nothing is read that is not there yet or no longer, and nothing
// is touched that is in flight.
class Memory {
 public:
  explicit Memory(const AttentionProgram& program) : program_(program), rows_(program.buffers.size()) {}

  std::string follow() {
    write_inputs();
    for (const Op& op : program_.ops) {
      step(op);
      if (!wrong_.empty()) return wrong_;
    }
    return in_flight_.empty() ? "" : "a transfer is in flight at the end";
  }

 private:
  enum class Access : uint8_t { kRead, kWrite };
  static constexpr IndexRange kAllHeads{-1, -1};

  const ChunkBuffers& chunk_of(const Op& op) const { return program_.chunks[static_cast<size_t>(op.chunk)]; }
  const Transfer& transfer_of(const Op& op) const { return program_.transfers[static_cast<size_t>(op.index)]; }

  // What is wrong first.
  void report(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  static bool overlap(const BufferRange& a, const BufferRange& b) {
    return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }
  // A message being sent may be read, one being received may not be touched.
  void touch(const BufferRange& at, Access access) {
    if (at.offset < 0 || at.offset + at.bytes > program_.buffers[static_cast<size_t>(at.buffer)])
      report("a range outside of its buffer");
    for (const auto& [index, transfer] : in_flight_) {
      for (const Message& m : program_.receives(*transfer))
        if (overlap(m.at, at)) report(fmt::format("transfer {} is still arriving there", index));
      for (const Message& m : program_.sends(*transfer))
        if (access == Access::kWrite && overlap(m.at, at))
          report(fmt::format("transfer {} is still being sent from there", index));
    }
  }

  // A row per token, all of the same size; a record is one row.
  void put(const BufferRange& at, Region region, IndexRange heads, IndexRange tokens) {
    auto& rows = rows_[static_cast<size_t>(at.buffer)];
    const int64_t count = region == Region::kStatistics ? 1 : tokens.size();
    if (count == 0 || at.bytes == 0) return;
    // Rows that it covers a part of are gone as well.
    auto old = rows.lower_bound(at.offset);
    if (old != rows.begin() && std::prev(old)->first + std::prev(old)->second.bytes > at.offset) --old;
    while (old != rows.end() && old->first < at.offset + at.bytes) old = rows.erase(old);
    const int64_t bytes = at.bytes / count;
    for (int64_t i = 0; i < count; ++i) rows[at.offset + i * bytes] = {region, bytes, heads, tokens.begin + i};
  }
  void write(const BufferRange& at, Region region, IndexRange heads, IndexRange tokens) {
    touch(at, Access::kWrite);
    put(at, region, heads, tokens);
  }
  void read(const BufferRange& at, Region region, IndexRange heads, IndexRange tokens) {
    touch(at, Access::kRead);
    const auto& rows = rows_[static_cast<size_t>(at.buffer)];
    const int64_t count = region == Region::kStatistics ? 1 : tokens.size();
    if (count == 0 || at.bytes == 0) return;
    const int64_t bytes = at.bytes / count;
    for (int64_t i = 0; i < count; ++i) {
      const auto found = rows.find(at.offset + i * bytes);
      if (found == rows.end() || found->second != Row{region, bytes, heads, tokens.begin + i})
        report(fmt::format("region {} of token {} is not there", static_cast<int>(region), tokens.begin + i));
    }
  }

  // q, k, v of the own tokens, as Pack or a model writes them.
  void write_inputs() {
    const bool narrows = program_.wide.bytes > 0;
    for (const ChunkBuffers& chunk : program_.chunks) write(chunk.own_q, Region::kQ, chunk.heads, program_.tokens);
    if (narrows) write(program_.own_wide, Region::kKV, kAllHeads, program_.tokens);
    else write_own_keys();
    for (const Transfer& transfer : program_.transfers)
      if (transfer.kind == Transfer::Kind::kExchange)
        for (const Message& m : program_.sends(transfer))
          if (!narrows || m.region != Region::kKV) write(m.at, m.region, m.heads, m.tokens);
  }
  void write_own_keys() {
    for (const ChunkBuffers& chunk : program_.chunks) write(chunk.own_kv, Region::kKV, chunk.heads, program_.tokens);
  }
  void narrow() {
    read(program_.own_wide, Region::kKV, kAllHeads, program_.tokens);
    write_own_keys();
    for (const Transfer& transfer : program_.transfers)
      if (transfer.kind == Transfer::Kind::kExchange)
        for (const Message& m : program_.sends(transfer))
          if (m.region == Region::kKV) write(m.at, m.region, m.heads, m.tokens);
  }
  // Of keys that are computed with: where they travel in fewer bits, wide is overwritten.
  void read_keys(const BufferRange& at, const ChunkBuffers& chunk, IndexRange keys) {
    read(at, Region::kKV, chunk.heads, keys);
    if (program_.wide.bytes > 0) write(program_.wide, Region::kKV, chunk.heads, {keys.begin, keys.begin + 1});
  }

  void step(const Op& op) {
    const ChunkBuffers& chunk = chunk_of(op);
    const IndexRange own = program_.tokens, block = program_.block;
    const bool computes = program_.computes(op.chunk);
    switch (op.kind) {
      case Kind::kPack:
        break;  // before the first op that reads; see write_inputs()
      case Kind::kNarrow:
        narrow();
        break;
      case Kind::kPost:
        for (const Message& m : program_.sends(transfer_of(op))) read(m.at, m.region, m.heads, m.tokens);
        for (const Message& m : program_.receives(transfer_of(op))) touch(m.at, Access::kWrite);
        in_flight_[op.index] = &transfer_of(op);
        break;
      case Kind::kWait:
        in_flight_.erase(op.index);
        for (const Message& m : program_.receives(transfer_of(op))) write(m.at, m.region, m.heads, m.tokens);
        break;
      case Kind::kStatistics:
        if (!computes) break;
        read_keys(chunk.kv, chunk, block);
        write(chunk.records[static_cast<size_t>(chunk.own_record)], Region::kStatistics, chunk.heads, block);
        break;
      case Kind::kCombine:
        for (const BufferRange& record : chunk.records) {
          touch(record, Access::kRead);
          if (rows_[static_cast<size_t>(record.buffer)].empty()) report("a record is not there");
        }
        if (computes) write(chunk.combined, Region::kStatistics, chunk.heads, {});
        break;
      case Kind::kInit:
        break;
      case Kind::kFold:
      case Kind::kAttend:
        if (!computes) break;
        read(chunk.q, Region::kQ, chunk.heads, block);
        if (!chunk.records.empty()) read(chunk.combined, Region::kStatistics, chunk.heads, {});
        for (const KeyBlock& keys : program_.blocks_of(program_.folds[static_cast<size_t>(op.index)]))
          read_keys(keys.at, chunk, keys.keys);
        if (op.kind == Kind::kFold) break;
        [[fallthrough]];
      case Kind::kFinish:
        if (computes) write(chunk.o, Region::kO, chunk.heads, block);
        if (computes) write(chunk.logs, Region::kLogSumExp, chunk.heads, block);
        break;
      case Kind::kUnpackOwn:
        read(chunk.own_o, Region::kO, chunk.heads, own);
        read(chunk.own_logs, Region::kLogSumExp, chunk.heads, own);
        break;
      case Kind::kUnpack:
        for (const Transfer& t : program_.transfers)
          if (t.kind == Transfer::Kind::kOutput && t.chunk == op.chunk)
            for (const Message& m : program_.receives(t)) read(m.at, m.region, m.heads, m.tokens);
        break;
    }
  }

  const AttentionProgram& program_;
  std::vector<std::map<int64_t, Row>> rows_;  // by buffer, by offset
  std::map<int, const Transfer*> in_flight_;
  std::string wrong_;
};

inline std::string misused_memory(const AttentionProgram& program) { return Memory(program).follow(); }

// The statistics that folds need: own ones are measured, sent, awaited and combined before the first fold of the chunk.
inline std::string late_statistics(const AttentionProgram& program, bool gathers) {
  for (int chunk = 0; chunk < static_cast<int>(program.chunks.size()); ++chunk) {
    if (program.chunks[static_cast<size_t>(chunk)].records.empty() != !(gathers && program.computes(chunk)))
      return "records where none are needed, or none where they are";
    std::string order;
    for (const Op& op : program.ops) {
      if (op.chunk != chunk) continue;
      const auto gather = [&] {
        return program.transfers[static_cast<size_t>(op.index)].kind == Transfer::Kind::kStatistics;
      };
      if (op.kind == Kind::kStatistics) order += 'm';
      if (op.kind == Kind::kPost && gather()) order += 'p';
      if (op.kind == Kind::kWait && gather()) order += 'w';
      if (op.kind == Kind::kCombine) order += 'c';
      if (op.kind == Kind::kFold && order.find('f') == std::string::npos) order += 'f';
    }
    if (gathers ? order != "mpwcf" : order.find_first_not_of('f') != std::string::npos)
      return fmt::format("statistics of chunk {} go in the order {}", chunk, order);
  }
  return {};
}

// Every head of the own tokens is unpacked once, own and received ones, of o and of the log-sum-exp where it is wanted.
inline std::string wrongly_unpacked(const AttentionProgram& program, int64_t heads, Region region = Region::kO) {
  std::vector<int> unpacked(static_cast<size_t>(heads));
  const auto count = [&](IndexRange range) {
    for (int64_t head = range.begin; head < range.end; ++head) ++unpacked[static_cast<size_t>(head)];
  };
  for (const Op& op : program.ops) {
    if (op.kind == Kind::kUnpackOwn) count(program.chunks[static_cast<size_t>(op.chunk)].heads);
    if (op.kind != Kind::kUnpack) continue;
    for (const Transfer& t : program.transfers)
      if (t.kind == Transfer::Kind::kOutput && t.chunk == op.chunk)
        for (const Message& m : program.receives(t))
          if (m.region == region) count(m.heads);
  }
  for (const int times : unpacked)
    if (times != 1) return fmt::format("a head is unpacked {} times", times);
  return {};
}

inline std::string anything_wrong(const Programs& programs, const Sizes& sizes, const ContextLayout& layout,
                                  bool gathers) {
  std::string wrong = order_differs(programs);
  if (wrong.empty()) wrong = unmatched(programs, layout);
  for (const AttentionProgram& program : programs) {
    if (wrong.empty()) wrong = wrongly_posted(program);
    if (wrong.empty()) wrong = wrongly_folded(program, sizes.tokens);
    if (wrong.empty()) wrong = late_statistics(program, gathers);
    if (wrong.empty()) wrong = misused_memory(program);
    if (layout.ulysses == 1 || program.tokens.empty()) continue;
    if (wrong.empty()) wrong = wrongly_unpacked(program, sizes.heads);
    if (wrong.empty() && sizes.log_sum_exp) wrong = wrongly_unpacked(program, sizes.heads, Region::kLogSumExp);
  }
  return wrong;
}

}  // namespace zoetrope::parallel
