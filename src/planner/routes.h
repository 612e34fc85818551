// Which links a message takes, and what each of them carries while many are under way. Devices and links are numbers;
// built once a profile, asked by the simulator for every phase.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/hardware.h"

namespace zoetrope::planner {

struct Flow {
  int from = 0, to = 0;  // devices
  int64_t bytes = 0;
};

class Routes {
 public:
  explicit Routes(const HardwareProfile& hardware);

  // The lowest level that holds both.
  int level(int from, int to) const;
  // Seconds until the last byte of each flow has arrived when all start together: the most loaded link of its route,
  // every link serving what it carries one after the other, plus the level's latency (times hops on a grid). Flows
  // from a device to itself take none.
  std::vector<double> seconds(const std::vector<Flow>& flows) const;
  // Seconds of the sending and receiving device's own time that a flow takes: (1 − overlap) of its transfer.
  double stolen(const Flow& flow, double seconds) const;

 private:
  struct Link {
    double bandwidth = 0;
  };
  void route(int from, int to, std::vector<int>& links) const;  // link numbers; appended

  const HardwareProfile& hardware_;
  std::vector<Link> links_;
  std::vector<int> first_link_;  // of each level
  std::vector<int> group_size_;  // devices in one group of each level
};

}  // namespace zoetrope::planner
