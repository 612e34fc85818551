#include "attention/counters.h"

#include <algorithm>
#include <vector>

namespace zoetrope::attention {
namespace {

void add(const Counters::Traffic& more, Counters::Traffic& sum) {
  sum.bytes_sent += more.bytes_sent;
  sum.bytes_received += more.bytes_received;
  sum.wait_seconds += more.wait_seconds;
}

}  // namespace

Counters::Traffic traffic(const Counters& counters) {
  Counters::Traffic sum = counters.ulysses;
  add(counters.ring, sum);
  add(counters.gather, sum);
  return sum;
}

void add(const Counters& more, Counters& sum) {
  add(more.ulysses, sum.ulysses);
  add(more.ring, sum.ring);
  add(more.gather, sum.gather);
  sum.bytes_copied += more.bytes_copied;
  sum.tiles_fixed += more.tiles_fixed;
  sum.tiles_online += more.tiles_online;
  sum.key_rounding = std::max(sum.key_rounding, more.key_rounding);
  sum.value_rounding = std::max(sum.value_rounding, more.value_rounding);
  sum.heads_int8 += more.heads_int8;
  sum.heads_as_computed += more.heads_as_computed;
  sum.int8_error = std::max(sum.int8_error, more.int8_error);
}

Counters sum_over_ranks(comm::Communicator& ranks, const Counters& mine) {
  std::vector<Counters> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(&mine, all.data(), sizeof mine, "attention counters");
  Counters sum;
  for (const Counters& one : all) add(one, sum);
  return sum;
}

}  // namespace zoetrope::attention
