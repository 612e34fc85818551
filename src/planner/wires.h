// Transfers on the clocks of their ranks: when the messages of a phase begin and end, given when each rank posted its
// part. Knows links and times, but not what is sent.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/routes.h"

namespace zoetrope::planner {

// One phase, as one rank sees it.
struct Arrival {
  double posted = 0;  // by the rank itself
  double met = 0;     // when all its peers had posted too
  double begin = 0;   // of the message that ends last, in or out
  double end = 0;
  double slowdown = 0;  // of compute during the transfer, in seconds
  int level = -1;       // of the message that ends last; -1: none
  int64_t bytes = 0;    // received
};

class Wires {
 public:
  Wires(const Routes& routes, int levels, int ranks);

  // Moves the `flows` of one phase. A message begins when both ends have posted and their earlier messages on the same
  // level have ended: two exchanges of a rank use its links one after the other. Each flow is `messages` messages
  // (three for q, k and v), each of which costs the latency.
  std::vector<Arrival> carry(const std::vector<Flow>& flows, const std::vector<double>& posted, int messages);
  // The same where in every group each rank sends to all others; `times` in a row, of which each costs the latency.
  std::vector<Arrival> gather(const std::vector<Routes::Group>& groups, const std::vector<double>& posted,
                              int64_t times = 1);

 private:
  double& busy_until(int level, int rank) { return busy_until_[static_cast<size_t>(level * ranks_ + rank)]; }

  const Routes& routes_;
  int ranks_;
  std::vector<double> busy_until_;  // [level, rank]
};

}  // namespace zoetrope::planner
