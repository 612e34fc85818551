// Arithmetic of what attention counts.
#pragma once

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

namespace zoetrope::attention {

// Of all exchanges.
Counters::Traffic traffic(const Counters& counters);

// Counts and seconds are added up; of errors the largest stays.
void add(const Counters& more, Counters& sum);

// What all ranks counted, added as add() does, on every rank. Collective.
Counters sum_over_ranks(comm::Communicator& ranks, const Counters& mine);

}  // namespace zoetrope::attention
