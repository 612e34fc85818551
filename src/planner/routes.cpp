// Numbers links level by level and routes messages. Links of a group have consecutive numbers:
//
//   switch      member 0: ports out, ports in; member 1: …           half duplex: one link per port
//   mesh/torus  member 0: dimension 0 up, down; dimension 1 up, …    half duplex: one link per neighbour
//   bus         one
#include "planner/routes.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.h"

namespace zoetrope::planner {
namespace {

// A route along one dimension: how many links, up (+1) or down (−1).
struct Way {
  int links = 0, step = 1;
};

// Where both directions of a torus are equally long, members with an even coordinate go up and the others down, which
// balances the load. A torus of two has one link between them, not two.
Way way_along(LinkKind kind, int extent, int from, int to) {
  const int up = to >= from ? to - from : to - from + extent;
  if (kind == LinkKind::kMesh || extent == 2) return {std::abs(to - from), to >= from ? 1 : -1};
  const int down = extent - up;
  if (up == 0) return {};
  if (up < down || (up == down && from % 2 == 0)) return {up, 1};
  return {down, -1};
}

}  // namespace

Routes::Routes(const HardwareProfile& hardware) {
  int below = 1;
  for (const LinkLevel& figures : hardware.links) {
    Level level;
    level.figures = figures;
    level.below = below;
    level.first = link_count_;
    level.speed = figures.bandwidth;
    const int ways = figures.full_duplex ? 2 : 1;
    if (is_grid(figures.kind)) {
      int product = 1;
      for (const int extent : figures.shape) product *= extent;
      ZT_CHECK(product == figures.members, "level {} has {} members, its grid {}", figures.name, figures.members,
               product);
      level.dimensions = static_cast<int>(figures.shape.size());
      level.group = figures.members * level.dimensions * ways;
    } else if (figures.kind == LinkKind::kSwitch) {
      // A device sends through its part of its member's ports: some of them, or one shared with its neighbours.
      level.ports = std::min(figures.ports, below);
      level.speed = figures.bandwidth * figures.ports / level.ports;
      level.group = figures.members * level.ports * ways;
    }
    below *= figures.members;
    link_count_ += level.group * std::max(1, hardware.devices / below);
    levels_.push_back(std::move(level));
  }
  ZT_CHECK(below >= hardware.devices, "link levels join {} of {} devices", below, hardware.devices);
}

int Routes::level(int from, int to) const {
  for (size_t i = 0; i < levels_.size(); ++i) {
    const int size = levels_[i].below * levels_[i].figures.members;
    if (from / size == to / size) return static_cast<int>(i);
  }
  ZT_CHECK(false, "no link level joins devices {} and {}", from, to);
  return -1;
}

Routes::Ends Routes::ends_of(const Level& level, int from, int to) {
  const int size = level.below * level.figures.members, group = from / size;
  return {group, (from - group * size) / level.below, (to - group * size) / level.below};
}

void Routes::route_switch(const Level& level, int from, int to, std::vector<int>& links) {
  const Ends ends = ends_of(level, from, to);
  const int first = level.first + ends.group * level.group;
  const auto port = [&](int device) { return device % level.below * level.ports / level.below; };
  const int out = ends.from * level.ports + port(from), in = ends.to * level.ports + port(to);
  const int ways = level.figures.full_duplex ? 2 : 1;
  links.push_back(first + ways * out);
  links.push_back(first + ways * in + (ways - 1));
}

// First along dimension 0, then along dimension 1, …
void Routes::route_grid(const Level& level, const Ends& ends, std::vector<int>& links) {
  const bool duplex = level.figures.full_duplex;
  const int first = level.first + ends.group * level.group;
  int member = ends.from, stride = 1;
  for (int dimension = 0; dimension < level.dimensions; ++dimension) {
    const int extent = level.figures.shape[static_cast<size_t>(dimension)];
    int at = member / stride % extent;
    const Way way = way_along(level.figures.kind, extent, at, ends.to / stride % extent);
    for (int i = 0; i < way.links; ++i) {
      const int next = (at + way.step + extent) % extent, neighbour = member + (next - at) * stride;
      // A half-duplex link has the number of the member that goes up on it.
      const int link = (duplex || way.step > 0 ? member : neighbour) * level.dimensions + dimension;
      links.push_back(first + (duplex ? 2 * link + (way.step > 0 ? 0 : 1) : link));
      member = neighbour;
      at = next;
    }
    stride *= extent;
  }
}

Passage Routes::route(int from, int to, std::vector<int>& links) const {
  if (from == to) return {};
  const int number = level(from, to);
  const Level& at = levels_[static_cast<size_t>(number)];
  const LinkLevel& figures = at.figures;
  if (is_grid(figures.kind)) {
    const size_t before = links.size();
    route_grid(at, ends_of(at, from, to), links);
    return {number, 0, figures.latency * static_cast<double>(links.size() - before), figures.overlap};
  }
  if (figures.kind == LinkKind::kBus) {
    links.push_back(at.first + ends_of(at, from, to).group);
  } else {
    route_switch(at, from, to, links);
  }
  return {number, 0, figures.latency, figures.overlap};
}

std::vector<Passage> Routes::passages(const std::vector<Flow>& flows) const {
  std::vector<double> busy(static_cast<size_t>(link_count_), 0.0);
  std::vector<Passage> passages;
  std::vector<int> links;
  std::vector<size_t> ends;
  passages.reserve(flows.size());
  ends.reserve(flows.size());
  links.reserve(flows.size() * 2);
  for (const Flow& flow : flows) {
    const size_t begin = links.size();
    const Passage& passage = passages.emplace_back(route(flow.from, flow.to, links));
    for (size_t i = begin; i < links.size(); ++i)
      busy[static_cast<size_t>(links[i])] +=
          static_cast<double>(flow.bytes) / levels_[static_cast<size_t>(passage.level)].speed;
    ends.push_back(links.size());
  }
  size_t begin = 0;
  for (size_t f = 0; f < flows.size(); ++f) {
    double longest = 0;
    for (size_t i = begin; i < ends[f]; ++i) longest = std::max(longest, busy[static_cast<size_t>(links[i])]);
    begin = ends[f];
    passages[f].seconds = longest + passages[f].latency;
  }
  return passages;
}

// On a grid pairs of members are routed, times the devices of both. A device's port carries a flow out and one in for
// each device of other members; a bus carries every flow once.
Routes::Load Routes::load_of_pairs(int number, const std::vector<int>& devices) const {
  const Level& level = levels_[static_cast<size_t>(number)];
  const LinkLevel& figures = level.figures;
  const int size = level.below * figures.members;
  std::map<int, std::map<int, int>> groups;  // devices by group of the level and member
  for (const int device : devices) ++groups[device / size][device % size / level.below];
  Load load;
  load.passage = {-1, 0, 0, figures.overlap};
  const auto add = [&](int link, double flows) {
    load.links.push_back(link);
    load.flows.push_back(flows);
    load.passage.level = number;
  };
  for (const auto& [group, members] : groups) {
    if (members.size() < 2) continue;
    double all = 0, inside = 0;
    for (const auto& [member, count] : members) {
      all += count;
      inside += static_cast<double>(count) * count;
    }
    load.passage.latency = std::max(load.passage.latency, figures.latency);
    if (figures.kind == LinkKind::kBus) {
      add(level.first + group, all * all - inside);
    } else if (is_grid(figures.kind)) {
      for (const auto& [from, senders] : members)
        for (const auto& [to, receivers] : members) {
          std::vector<int> links;
          route_grid(level, {group, from, to}, links);
          load.passage.latency = std::max(load.passage.latency, figures.latency * static_cast<double>(links.size()));
          for (const int link : links) add(link, static_cast<double>(senders) * receivers);
        }
    } else {
      for (const int device : devices) {
        if (device / size != group) continue;
        const double others = all - members.at(device % size / level.below);
        std::vector<int> links;
        // To the next member, whichever it is: only the own port is of interest.
        const int next = device / size * size + (device % size + level.below) % size;
        route_switch(level, device, next, links);
        add(links[0], others);
        links.clear();
        route_switch(level, next, device, links);
        add(links[1], others);
      }
    }
  }
  return load;
}

std::vector<Passage> Routes::gathers(const std::vector<Group>& groups) const {
  std::vector<double> busy(static_cast<size_t>(link_count_), 0.0);
  std::vector<std::vector<Load>> loads(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t number = 0; number < levels_.size(); ++number) {
      Load& load = loads[g].emplace_back(load_of_pairs(static_cast<int>(number), groups[g].devices));
      for (size_t i = 0; i < load.links.size(); ++i)
        busy[static_cast<size_t>(load.links[i])] +=
            load.flows[i] * static_cast<double>(groups[g].bytes) / levels_[number].speed;
    }
  }
  std::vector<Passage> passages(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    for (Load& load : loads[g]) {
      for (const int link : load.links)
        load.passage.seconds = std::max(load.passage.seconds, busy[static_cast<size_t>(link)]);
      load.passage.seconds += load.passage.latency;
      if (load.passage.seconds > passages[g].seconds) passages[g] = load.passage;
    }
  }
  return passages;
}

}  // namespace zoetrope::planner
