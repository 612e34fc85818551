// Links and their loads, for every kind of level, against sums made by hand and against one another.
#include "planner/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace zoetrope::planner {
namespace {

constexpr double kBandwidth = 1e9, kLatency = 1e-6;
constexpr int64_t kMegabyte = 1'000'000;

LinkLevel level(LinkKind kind, int members, std::vector<int> shape = {}) {
  LinkLevel made;
  made.name = "level";
  made.kind = kind;
  made.members = members;
  made.shape = std::move(shape);
  made.bandwidth = kBandwidth;
  made.latency = kLatency;
  return made;
}

HardwareProfile machine(std::vector<LinkLevel> levels) {
  HardwareProfile made;
  made.devices = 1;
  for (const LinkLevel& one : levels) made.devices *= one.members;
  made.links = std::move(levels);
  return made;
}

// In milliseconds without latency, which is what a megabyte takes at a gigabyte a second.
std::vector<double> load(const HardwareProfile& hardware, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<Flow> flows;
  for (const auto& [from, to] : pairs) flows.push_back({from, to, kMegabyte});
  std::vector<double> loads;
  for (const Passage& passage : Routes(hardware).passages(flows))
    loads.push_back((passage.seconds - passage.latency) * 1e3);
  return loads;
}

void expect_loads(const std::vector<double>& loads, const std::vector<double>& expected) {
  ASSERT_EQ(loads.size(), expected.size());
  for (size_t i = 0; i < loads.size(); ++i) EXPECT_NEAR(loads[i], expected[i], 1e-9) << i;
}

TEST(Routes, TheLowestLevelThatHoldsBothCarriesAMessage) {
  const Routes routes(machine({level(LinkKind::kSwitch, 2), level(LinkKind::kSwitch, 3), level(LinkKind::kBus, 2)}));
  EXPECT_EQ(routes.level(0, 1), 0);
  EXPECT_EQ(routes.level(1, 2), 1);
  EXPECT_EQ(routes.level(6, 11), 1);
  EXPECT_EQ(routes.level(5, 6), 2);
}

TEST(Routes, PortsOfASwitchCarryOneAfterTheOther) {
  const HardwareProfile hardware = machine({level(LinkKind::kSwitch, 4)});
  expect_loads(load(hardware, {{0, 1}}), {1});
  expect_loads(load(hardware, {{0, 1}, {2, 3}}), {1, 1});
  // One port out, and one in.
  expect_loads(load(hardware, {{0, 1}, {0, 2}, {3, 2}}), {2, 2, 2});
  // Out and in at once.
  expect_loads(load(hardware, {{0, 1}, {1, 0}}), {1, 1});
}

TEST(Routes, HalfDuplexSharesBothWays) {
  for (const LinkKind kind : {LinkKind::kSwitch, LinkKind::kMesh, LinkKind::kTorus}) {
    LinkLevel half = level(kind, 4, {4});
    half.full_duplex = false;
    expect_loads(load(machine({half}), {{0, 1}, {1, 0}}), {2, 2});
  }
}

TEST(Routes, ABusCarriesAllOfItsGroup) {
  const HardwareProfile hardware = machine({level(LinkKind::kBus, 3), level(LinkKind::kSwitch, 2)});
  expect_loads(load(hardware, {{0, 1}, {1, 2}, {2, 0}}), {3, 3, 3});
  expect_loads(load(hardware, {{0, 1}, {4, 5}, {2, 3}}), {1, 1, 1});
}

TEST(Routes, DevicesShareThePortsOfTheirMember) {
  LinkLevel inner = level(LinkKind::kSwitch, 4), outer = level(LinkKind::kSwitch, 2);
  const std::vector<std::pair<int, int>> all{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  outer.ports = 1;
  expect_loads(load(machine({inner, outer}), all), {4, 4, 4, 4});
  outer.ports = 2;
  expect_loads(load(machine({inner, outer}), all), {2, 2, 2, 2});
  outer.ports = 4;
  expect_loads(load(machine({inner, outer}), all), {1, 1, 1, 1});
  outer.ports = 8;
  expect_loads(load(machine({inner, outer}), all), {0.5, 0.5, 0.5, 0.5});
  // A device has its own ports alone, however idle the others are.
  outer.ports = 4;
  expect_loads(load(machine({inner, outer}), {{0, 4}, {0, 5}}), {2, 2});
}

TEST(Routes, AMeshIsCrossedDimensionByDimension) {
  const HardwareProfile hardware = machine({level(LinkKind::kMesh, 6, {3, 2})});
  // 0 1 2
  // 3 4 5: from 0 to 5 by 1 and 2, so that links 0-1, 1-2 and 2-5 are shared.
  expect_loads(load(hardware, {{0, 5}, {0, 1}}), {2, 2});
  expect_loads(load(hardware, {{0, 5}, {2, 5}}), {2, 2});
  expect_loads(load(hardware, {{0, 5}, {0, 3}}), {1, 1});
  expect_loads(load(hardware, {{0, 5}, {4, 5}}), {1, 1});
  EXPECT_NEAR(Routes(hardware).passages({{0, 5, 0}})[0].latency, 3 * kLatency, 1e-15);
}

// The all-to-all of 8 devices on 2 x 2 chips of two: a link carries the four pairs across it and the four that turn.
TEST(Routes, AnAllToAllOnFourChipsLoadsALinkWithEightMessages) {
  const HardwareProfile hardware = machine({level(LinkKind::kSwitch, 2), level(LinkKind::kMesh, 4, {2, 2, 1})});
  std::vector<std::pair<int, int>> pairs;
  for (int from = 0; from < 8; ++from)
    for (int to = 0; to < 8; ++to)
      if (from != to) pairs.emplace_back(from, to);
  const std::vector<double> loads = load(hardware, pairs);
  EXPECT_NEAR(*std::max_element(loads.begin(), loads.end()), 8, 1e-9);
}

TEST(Routes, ATorusGoesTheShorterWay) {
  const std::vector<std::pair<int, int>> wrap{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 0}};
  expect_loads(load(machine({level(LinkKind::kTorus, 5, {5})}), wrap), {1, 1, 1, 1, 1});
  // On a mesh the last goes back through all, the other way than the others.
  expect_loads(load(machine({level(LinkKind::kMesh, 5, {5})}), wrap), {1, 1, 1, 1, 1});
  const std::vector<std::pair<int, int>> back{{1, 0}, {2, 1}, {4, 0}};
  expect_loads(load(machine({level(LinkKind::kMesh, 5, {5})}), back), {2, 2, 2});
  expect_loads(load(machine({level(LinkKind::kTorus, 5, {5})}), back), {1, 1, 1});
}

// Half way round an even ring is as far either way: 8 devices, everyone to the opposite one, 4 links each.
TEST(Routes, TiesOnATorusAreSharedByBothWays) {
  std::vector<std::pair<int, int>> pairs;
  for (int from = 0; from < 8; ++from) pairs.emplace_back(from, (from + 4) % 8);
  for (const double one : load(machine({level(LinkKind::kTorus, 8, {8})}), pairs)) EXPECT_NEAR(one, 2, 1e-9);
}

TEST(Routes, ATorusOfTwoHasOneLink) {
  const HardwareProfile torus = machine({level(LinkKind::kTorus, 2, {2})});
  expect_loads(load(torus, {{0, 1}, {1, 0}}), {1, 1});
  expect_loads(load(torus, {{0, 1}, {0, 1}}), {2, 2});
}

TEST(Routes, ADeviceReachesItselfInNoTime) {
  const Routes routes(machine({level(LinkKind::kSwitch, 2)}));
  const Passage passage = routes.passages({{1, 1, kMegabyte}})[0];
  EXPECT_EQ(passage.level, -1);
  EXPECT_EQ(passage.seconds, 0);
}

// Counted gathers against all their pairs, listed.
TEST(Routes, GathersAreTheFlowsOfAllPairs) {
  LinkLevel ports = level(LinkKind::kSwitch, 2), half = level(LinkKind::kMesh, 6, {3, 2});
  ports.ports = 2;
  half.full_duplex = false;
  const std::vector<HardwareProfile> machines{
      machine({level(LinkKind::kSwitch, 12)}),
      machine({level(LinkKind::kBus, 3), level(LinkKind::kSwitch, 4)}),
      machine({level(LinkKind::kSwitch, 6), ports}),
      machine({level(LinkKind::kSwitch, 3), level(LinkKind::kBus, 4)}),
      machine({level(LinkKind::kSwitch, 2), level(LinkKind::kTorus, 6, {3, 2})}),
      machine({level(LinkKind::kSwitch, 2), half}),
  };
  const std::vector<std::vector<std::vector<int>>> cases{
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
      {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}},
      {{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}},
      {{0, 5, 11}},
      {{7}},
  };
  for (size_t m = 0; m < machines.size(); ++m)
    for (size_t c = 0; c < cases.size(); ++c) {
      const Routes routes(machines[m]);
      std::vector<Flow> flows;
      std::vector<size_t> owner;
      for (size_t g = 0; g < cases[c].size(); ++g)
        for (const int from : cases[c][g])
          for (const int to : cases[c][g])
            if (from != to) {
              flows.push_back({from, to, kMegabyte});
              owner.push_back(g);
            }
      // By group and level: the gather adds the longest latency of a level to its fullest link.
      std::map<std::pair<size_t, int>, std::pair<double, double>> slowest;
      const std::vector<Passage> passages = routes.passages(flows);
      for (size_t f = 0; f < flows.size(); ++f) {
        auto& [busy, latency] = slowest[{owner[f], passages[f].level}];
        busy = std::max(busy, passages[f].seconds - passages[f].latency);
        latency = std::max(latency, passages[f].latency);
      }
      std::vector<Routes::Group> groups;
      for (const std::vector<int>& devices : cases[c]) groups.push_back({devices, kMegabyte});
      const std::vector<Passage> gathers = routes.gathers(groups);
      for (size_t g = 0; g < cases[c].size(); ++g) {
        double expected = 0;
        for (const auto& [key, times] : slowest)
          if (key.first == g) expected = std::max(expected, times.first + times.second);
        EXPECT_NEAR(gathers[g].seconds, expected, 1e-12) << "machine " << m << ", case " << c << ", group " << g;
      }
    }
}

}  // namespace
}  // namespace zoetrope::planner
