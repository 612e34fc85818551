// Transfers on the clocks of their ranks: when a phase's messages begin and end, given when each rank has posted its
// part. Knows links and times, but not what is sent or why.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/routes.h"

namespace zoetrope::planner {

// What a phase is to one rank.
struct Arrival {
  double posted = 0;  // by the rank itself
  double met = 0;     // all that it exchanges with have posted too
  double begin = 0;   // of the message that ends last, in or out
  double end = 0;
  double stolen = 0;  // of the rank's own time while it computes beside the transfer
  int level = -1;     // of the message that ends last; -1: none
  int64_t bytes = 0;  // received
};

class Wires {
 public:
  Wires(const Routes& routes, int levels, int ranks);

  // Moves `flows`, those of one moment. A message begins when both ends have posted and what they moved before on the
  // same level has ended: two exchanges of a rank share its links one after the other. `messages` of a kind travel
  // together (q, k and v are three) and each costs the latency.
  std::vector<Arrival> carry(const std::vector<Flow>& flows, const std::vector<double>& posted, int messages);
  // The same for ranks of which, in every group, each sends to each other.
  std::vector<Arrival> gather(const std::vector<Routes::Group>& groups, const std::vector<double>& posted);

 private:
  double& busy_until(int level, int rank) { return busy_until_[static_cast<size_t>(level * ranks_ + rank)]; }

  const Routes& routes_;
  int ranks_;
  std::vector<double> busy_until_;  // [level, rank]
};

}  // namespace zoetrope::planner
