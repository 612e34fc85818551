// Which links a message takes, and the load of each link with many messages in flight. Devices and links are numbers.
// Built once per simulated step. Knows no model and no clock.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/hardware.h"

namespace zoetrope::planner {

struct Flow {
  int from = 0, to = 0;  // devices
  int64_t bytes = 0;
};

// The route of a flow.
struct Passage {
  int level = -1;      // the lowest that joins both ends; -1: from a device to itself
  double seconds = 0;  // until its last byte has arrived
  double latency = 0;  // part of `seconds`, independent of the size; on a grid times the links crossed
  double overlap = 1;  // share of the transfer that does not slow down compute
};

class Routes {
 public:
  explicit Routes(const HardwareProfile& hardware);

  // The lowest level that joins both.
  int level(int from, int to) const;
  // All flows start together; the most loaded link of its route determines the time of a flow. Flows from a device to
  // itself take no time.
  std::vector<Passage> passages(const std::vector<Flow>& flows) const;
  // In every group each device sends `bytes` to every other, all groups at once. The flows of all pairs are counted,
  // not listed. The passage of a group is that of its slowest flow.
  struct Group {
    std::vector<int> devices;
    int64_t bytes = 0;
  };
  std::vector<Passage> gathers(const std::vector<Group>& groups) const;

 private:
  struct Level {
    LinkLevel figures;
    int below = 1;       // devices of one member
    int first = 0;       // number of its first link
    int group = 1;       // links of one group
    int ports = 1;       // of one member into a switch, as links of their own
    double speed = 0;    // bytes/s of one link
    int dimensions = 0;  // of a grid
  };
  struct Ends {
    int group = 0, from = 0, to = 0;  // members of the group
  };

  static Ends ends_of(const Level& level, int from, int to);
  // Appends link numbers. The passage has no seconds yet.
  Passage route(int from, int to, std::vector<int>& links) const;
  static void route_switch(const Level& level, int from, int to, std::vector<int>& links);
  static void route_grid(const Level& level, const Ends& ends, std::vector<int>& links);

  // Links of one level that the pairs of a group take, and the longest latency among them.
  struct Load {
    std::vector<int> links;
    std::vector<double> flows;  // on each
    Passage passage;
  };
  Load load_of_pairs(int level, const std::vector<int>& devices) const;

  std::vector<Level> levels_;
  int link_count_ = 0;
};

}  // namespace zoetrope::planner
