// The bytes that a program moves, for tests, which compare them with what the engine counts and the simulator draws.
#pragma once

#include <cstdint>

#include "parallel/program.h"

namespace zoetrope::parallel {

struct Traffic {
  // Between ranks.
  int64_t exchange_sent = 0, exchange_received = 0;
  int64_t ring_sent = 0, ring_received = 0;              // K/V blocks
  int64_t statistics_sent = 0, statistics_received = 0;  // on the ring too, before the first block
  int64_t output_sent = 0, output_received = 0;
  int64_t gather_sent = 0, gather_received = 0;  // K/V of all ranks
  // Inside the rank: q, k, v of a caller with buffers of its own into the places of input_slots(), and what came back
  // into o. A caller that writes into the slots has packed = 0.
  int64_t packed = 0;
  int64_t unpacked = 0;

  int64_t sent() const { return exchange_sent + ring_sent + statistics_sent + output_sent + gather_sent; }
  int64_t received() const {
    return exchange_received + ring_received + statistics_received + output_received + gather_received;
  }
};

inline Traffic traffic(const AttentionProgram& program) {
  Traffic total;
  const auto add = [](int64_t& sum, std::span<const Message> messages) {
    for (const Message& message : messages) sum += message.at.bytes;
  };
  for (const Transfer& transfer : program.transfers) {
    switch (transfer.kind) {
      case Transfer::Kind::kExchange:
        add(total.exchange_sent, program.sends(transfer));
        add(total.exchange_received, program.receives(transfer));
        break;
      case Transfer::Kind::kStatistics:
        add(total.statistics_sent, program.sends(transfer));
        add(total.statistics_received, program.receives(transfer));
        break;
      case Transfer::Kind::kHop:
        add(total.ring_sent, program.sends(transfer));
        add(total.ring_received, program.receives(transfer));
        break;
      case Transfer::Kind::kOutput:
        add(total.output_sent, program.sends(transfer));
        add(total.output_received, program.receives(transfer));
        break;
      case Transfer::Kind::kGather:
        add(total.gather_sent, program.sends(transfer));
        add(total.gather_received, program.receives(transfer));
        break;
    }
  }
  for (const Op& op : program.ops) {
    const ChunkBuffers& chunk = program.chunks[static_cast<size_t>(op.chunk)];
    if (op.kind == Op::Kind::kUnpackOwn) total.unpacked += chunk.own_o.bytes + chunk.own_logs.bytes;
    if (op.kind != Op::Kind::kPack) continue;
    // Where no exchange moves q, it is read where the caller has it, and so are keys and values that are narrowed. What
    // is sent to peers is packed too.
    const bool narrows = program.wide.bytes > 0;
    for (const Transfer& transfer : program.transfers)
      if (transfer.kind == Transfer::Kind::kExchange)
        for (const Message& send : program.sends(transfer))
          if (!narrows || send.region != Region::kKV) total.packed += send.at.bytes;
    for (const ChunkBuffers& each : program.chunks)
      total.packed += (narrows ? 0 : each.own_kv.bytes) + (each.own_o.bytes > 0 ? each.own_q.bytes : 0);
  }
  total.unpacked += total.output_received;
  return total;
}

}  // namespace zoetrope::parallel
