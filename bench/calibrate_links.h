// Which ranks share a host, and what they send to each other while all of them send: the link levels of a profile. For
// calibrate.cpp only.
#pragma once

#include <functional>
#include <string>

#include "bench/calibrate_compute.h"
#include "bench/calibrate_rank.h"

namespace zoetrope::bench {

// Hosts of equal numbers of ranks, one after another.
struct HostLayout {
  int hosts = 1, ranks_per_host = 1;
  int host = 0, local = 0;  // of this rank
};

// By the name of the system that each rank runs on. Throws Error, on every rank, where hosts have different numbers of
// ranks or ranks of one are not consecutive: a profile's devices are both.
HostLayout find_hosts(comm::Communicator& world);

struct LinkFigures {
  Measured bandwidth;  // bytes/s: between hosts one way of a host's port, within one of all its ranks together
  Measured one_way;    // the same, with nothing the other way; within a host one rank alone
  Measured one_rank;   // between hosts: one rank of each alone
  Measured latency;    // seconds a message
  Measured overlap;    // share of a transfer that costs the ranks no compute
  bool full_duplex = true;
  int64_t bytes = 0;  // of a message of a rank
};

// Collective over all ranks; every host does the same at the same time. `work` is computed beside a transfer; null:
// nothing can be, as receivers copy when they post or wait (ranks are threads).
LinkFigures measure_within_host(CalibrationRank& rank, const HostLayout& layout, AttentionWork* work);
LinkFigures measure_between_hosts(CalibrationRank& rank, const HostLayout& layout, AttentionWork& work);

}  // namespace zoetrope::bench
