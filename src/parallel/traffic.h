// The bytes that one attention costs a rank, summed over the same tables that the executor follows: tests hold counted
// bytes against them, and a cost model prices them.
#pragma once

#include <cstdint>

#include "parallel/exchange.h"
#include "parallel/ring.h"

namespace zoetrope::parallel {

struct Traffic {
  // Between ranks.
  int64_t exchange_sent = 0, exchange_received = 0;
  int64_t ring_sent = 0, ring_received = 0;              // K/V blocks
  int64_t statistics_sent = 0, statistics_received = 0;  // on the ring too, before the first block
  int64_t return_sent = 0, return_received = 0;
  // Inside the rank: q, k, v of a caller with buffers of its own into the places of input_slots(), and what came back
  // into o. A caller that writes into the slots has packed = 0.
  int64_t packed = 0;
  int64_t unpacked = 0;

  int64_t sent() const { return exchange_sent + ring_sent + statistics_sent + return_sent; }
  int64_t received() const { return exchange_received + ring_received + statistics_received + return_received; }
};

// Head chunks change none of the sums.
Traffic traffic(const Sizes& sizes, const ContextLayout& layout, int rank, Softmax softmax = Softmax::kOnline);

}  // namespace zoetrope::parallel
