// How fast the hosts of a job exchange messages, measured in a fraction of a second where nobody calibrated them.
// `zoetrope calibrate` (bench/calibrate.h) measures more: half duplex, and what a transfer costs concurrent compute.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

inline constexpr const char* kMeasuringLinks = "measuring the links between hosts";

struct HostLinks {
  double bandwidth = 0;  // bytes/s of a host, one way, while as much goes the other way
  double latency = 0;    // seconds of a short message
};

// Every host sends to the next one, with as many ranks as the host with the fewest has. `hosts`: of each rank, as
// hosts_of_ranks() names them. Takes about half a second, and longer over less than 2 MB/s or where a message takes
// over a millisecond. None where there is one host. `clock`: of this rank, in seconds; unset: steady_clock. Collective;
// the same on every rank. Throws Error as Work::wait().
std::optional<HostLinks> measure_host_links(comm::Communicator& world, const std::vector<std::string>& hosts,
                                            const std::function<double()>& clock = {});

}  // namespace zoetrope::pipeline
