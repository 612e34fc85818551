// What is asked of a profile: fractions between measured sizes, a figure changed (what_if), a part of the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/test_folder.h"
#include "planner/hardware.h"
#include "planner/hardware_test_profile.h"

namespace zoetrope::planner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Curve, IsExactForASaturatingLaw) {
  const auto law = [](double x) { return 0.8 * x / (x + 500); };
  const Curve curve({{128, law(128)}, {1024, law(1024)}, {65536, law(65536)}});
  for (const double x : {1.0, 17.0, 127.0, 128.0, 129.0, 300.0, 1023.0, 1024.0, 1025.0, 9472.0, 65535.0, 65536.0})
    EXPECT_NEAR(curve.at(x), law(x), 1e-12) << x;
  EXPECT_EQ(curve.at(1e9), law(65536));  // the nearest point's
  EXPECT_LT(curve.at(1), 0.002);
  EXPECT_GT(curve.at(0), 0);  // less than a row is a row
}

TEST(Curve, OnePointIsEverywhereAndNoPointIsOne) {
  EXPECT_EQ(Curve(0.5).at(1), 0.5);
  EXPECT_EQ(Curve(0.5).at(1e12), 0.5);
  EXPECT_EQ(Curve({{4096, 0.4}}).at(1), 0.4);
  EXPECT_EQ(Curve().at(100), 1);
  // Points below a row: there is no next one to go to.
  EXPECT_EQ(Curve({{0.25, 0.2}, {0.5, 0.4}}).at(0.1), 0.4);
}

TEST(Curve, ThatFallsKeepsItsFirstPointBelow) {
  const Curve curve({{64, 0.6}, {128, 0.3}, {256, 0.5}});
  EXPECT_EQ(curve.at(1), 0.6);
  EXPECT_EQ(curve.at(64), 0.6);
  EXPECT_NEAR(curve.at(128), 0.3, 1e-15);
  for (double x = 64; x <= 256; x += 1) {
    EXPECT_GE(curve.at(x), 0.3 - 1e-15);
    EXPECT_LE(curve.at(x), 0.6 + 1e-15);
  }
}

TEST(WhatIf, SetsInTheFilesUnits) {
  HardwareProfile h = load_profile(kTwoNodes);
  set_figure(h, "links.node.bandwidth", "900");
  EXPECT_EQ(h.links[0].bandwidth, 900e9);
  set_figure(h, "memory", "141");
  EXPECT_EQ(h.device_memory, Bytes(141'000'000'000));
  set_figure(h, "links.cluster.latency", "2.5");
  EXPECT_EQ(h.links[1].latency, 2.5e-6);
  set_figure(h, "bf16.attention", "0.75");
  EXPECT_EQ(h.bf16.attention.at(1), 0.75);
  set_figure(h, "bf16.gemm", "{64: 0.1, 4096: 0.8}");
  EXPECT_EQ(h.bf16.gemm.points().size(), 2u);
  set_figure(h, "block_q_choices", "[64, 128]");
  EXPECT_EQ(h.block_q_choices, (std::vector<int64_t>{64, 128}));
  set_figure(h, "links.node.full_duplex", "false");
  EXPECT_FALSE(h.links[0].full_duplex);
}

TEST(WhatIf, Multiplies) {
  HardwareProfile h = load_profile(kTwoNodes);
  set_figure(h, "links.node.bandwidth", "x1.5");
  EXPECT_EQ(h.links[0].bandwidth, 370e9 * 1.5);
  set_figure(h, "bf16.attention", "x0.5");
  EXPECT_EQ(h.bf16.attention.points()[2].y, 0.3);
  set_figure(h, "memory", "x2");
  EXPECT_EQ(h.device_memory, Bytes(160'000'000'000));
  set_figure(h, "links.cluster.ports", "x0.5");
  EXPECT_EQ(h.links[1].ports, 4);
}

// A machine of another shape: what follows from it follows.
TEST(WhatIf, ChangesTheNumberOfDevices) {
  HardwareProfile h = load_profile(kTwoNodes);
  set_figure(h, "links.cluster.members", "4");
  EXPECT_EQ(h.devices, 16);
  EXPECT_EQ(h.price_per_hour, 32);
  set_figure(h, "devices", "4");
  EXPECT_EQ(h.devices, 4);
  EXPECT_EQ(h.links[1].members, 1);
  set_figure(h, "devices", "x2");
  EXPECT_EQ(h.devices, 8);
  EXPECT_EQ(h.price_per_hour, 16);

  h.links[1] = {"slice", 2, LinkKind::kMesh, {2, 1}, 89e9, 1, 13e-6, true, 1};
  set_figure(h, "links.slice.shape", "4x4x2");
  EXPECT_EQ(h.links[1].members, 32);
  EXPECT_EQ(h.devices, 128);
  set_figure(h, "links.slice.kind", "torus");
  EXPECT_EQ(h.links[1].kind, LinkKind::kTorus);
  set_figure(h, "links.slice.kind", "switch");
  EXPECT_TRUE(h.links[1].shape.empty());
}

TEST(WhatIf, FiguresThatOnlyTogetherMakeAMachine) {
  for (const bool kind_first : {true, false}) {
    HardwareProfile h = load_profile(kTwoNodes);
    std::vector<std::pair<std::string, std::string>> figures{{"links.node.kind", "mesh"}, {"links.node.shape", "2x4"}};
    if (!kind_first) std::swap(figures[0], figures[1]);
    set_figures(h, figures);
    EXPECT_EQ(h.links[0].kind, LinkKind::kMesh);
    EXPECT_EQ(h.links[0].members, 8);
    EXPECT_EQ(h.devices, 16);
    const std::string before = hardware_yaml(h);
    EXPECT_THAT(error_of([&] {
                  set_figures(h, {{"memory", "100"}, {"links.node.shape", "[]"}});
                }),
                HasSubstr("links.node.shape"));
    EXPECT_EQ(hardware_yaml(h), before);
  }
  HardwareProfile h = load_profile(kTwoNodes);
  EXPECT_THAT(error_of([&] {
                set_figures(h, {{"links.node.kind", "mesh"}, {"devices", "4"}});
              }),
              HasSubstr("devices=4: small: links.node.shape: is missing"));
}

TEST(WhatIf, RefusesAndLeavesTheProfileAsItWas) {
  HardwareProfile h = load_profile(kTwoNodes);
  const std::string before = hardware_yaml(h);
  const auto said = [&](const char* key, const char* value) { return error_of([&] { set_figure(h, key, value); }); };
  EXPECT_EQ(said("links.node.bandwith", "900"),
            "hardware small has no figure 'links.node.bandwith'; did you mean 'links.node.bandwidth'?");
  EXPECT_THAT(said("links.rack.bandwidth", "900"), HasSubstr("did you mean 'links."));
  EXPECT_THAT(said("quux", "1"), HasSubstr("hardware small has no figure 'quux'; it has devices, memory"));
  EXPECT_THAT(said("description", "x"), HasSubstr("has no figure 'description'"));
  EXPECT_EQ(said("links.node.bandwidth", "fast"), "links.node.bandwidth=fast: 'fast' is not a finite number");
  EXPECT_THAT(said("links.node.bandwidth", "-3"), HasSubstr("links.node.bandwidth=-3: -3 GB/s is out of range"));
  EXPECT_THAT(said("links.node.bandwidth", "x"), HasSubstr("links.node.bandwidth=x: '' is not a finite number"));
  EXPECT_THAT(said("links.node.bandwidth", "x-1"), HasSubstr("-370 GB/s is out of range"));
  EXPECT_THAT(said("links.node.bandwidth", "x1e300"), HasSubstr("is out of range"));
  EXPECT_THAT(said("bf16.gemm", "x2"), HasSubstr("bf16.gemm=x2: 1.4 is out of range"));
  EXPECT_THAT(said("bf16.fixed_max_gain", "2"), HasSubstr("bf16.attention: with its factors"));
  EXPECT_THAT(said("links.node.kind", "x2"), HasSubstr("links.node.kind=x2: is not a number that could be multiplied"));
  EXPECT_THAT(said("links.node.kind", "mesh"), HasSubstr("links.node.shape: is missing"));
  EXPECT_THAT(said("links.node.shape", "[2, 2]"), HasSubstr("only a mesh or torus has one"));
  EXPECT_THAT(said("links.node.members", "0"), HasSubstr("0 is out of range; 1 to"));
  EXPECT_THAT(said("links.node.members", "1000000"), HasSubstr("are more than the planner counts"));
  EXPECT_THAT(said("memory", "x1e10"), HasSubstr("is out of range"));
  EXPECT_EQ(hardware_yaml(h), before);
}

TEST(WhatIf, EveryNameIsAFigureThatCanBeSetToItself) {
  HardwareProfile h = load_profile(kTwoNodes);
  h.calibration = HardwareProfile::Calibration{"cpu", 1, 4, 1, "2026-01-31"};
  const std::vector<std::string> names = figure_names(h);
  EXPECT_THAT(names, AllOf(Contains("bf16.peak"), Contains("float32.gemm"), Contains("links.cluster.latency"),
                           Contains("memory"), Contains("price_per_hour"), Contains("calibration.ranks")));
  EXPECT_THAT(names, AllOf(Not(Contains("links.node.name")), Not(Contains("description"))));
  const std::string before = hardware_yaml(h);
  set_figure(h, "memory", "80");
  set_figure(h, "links.node.members", "4");
  EXPECT_EQ(hardware_yaml(h), before);
}

TEST(PartOfAMachine, TakesWholeInnerGroupsFirst) {
  const HardwareProfile h = load_profile(kTwoNodes);
  const auto members = [&](int devices) {
    const HardwareProfile part = with_devices(h, devices);
    EXPECT_EQ(part.devices, part.links[0].members * part.links[1].members);
    return std::pair(part.links[0].members, part.links[1].members);
  };
  EXPECT_EQ(members(1), std::pair(1, 1));
  EXPECT_EQ(members(2), std::pair(2, 1));
  EXPECT_EQ(members(3), std::pair(3, 1));
  EXPECT_EQ(members(4), std::pair(4, 1));
  EXPECT_EQ(members(5), std::pair(4, 2));  // both nodes, three devices idle
  EXPECT_EQ(members(8), std::pair(4, 2));
  EXPECT_EQ(members(12), std::pair(4, 3));
  EXPECT_EQ(members(64), std::pair(4, 16));
  EXPECT_EQ(with_devices(h, 2).price_per_hour, 4);
  EXPECT_EQ(with_devices(h, 16).price_per_hour, 32);
  EXPECT_EQ(with_devices(h, 2).devices_per_host, 2);
  EXPECT_EQ(with_devices(h, 16).devices_per_host, 4);
  EXPECT_EQ(with_devices(with_devices(h, 1), 4).devices, 4);
}

// Chips keep their numbers: of 4 x 2 x 2 the first row, then whole rows, then whole planes.
TEST(PartOfAMachine, OfAMeshIsItsCorner) {
  HardwareProfile h = load_profile(kTwoNodes);
  h.links = {{"chip", 2, LinkKind::kSwitch, {}, 534e9, 1, 13e-6, true, 1},
             {"slice", 16, LinkKind::kMesh, {4, 2, 2}, 89e9, 1, 13e-6, true, 1}};
  h.devices = 32;
  const auto shape = [&](int devices) { return with_devices(h, devices).links[1].shape; };
  EXPECT_EQ(shape(1), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(shape(2), (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(shape(3), (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(shape(8), (std::vector<int>{4, 1, 1}));
  EXPECT_EQ(shape(10), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(shape(16), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(shape(18), (std::vector<int>{4, 2, 2}));
  EXPECT_EQ(shape(32), (std::vector<int>{4, 2, 2}));
  EXPECT_EQ(with_devices(h, 18).devices, 32);
  EXPECT_EQ(error_of([&] { with_devices(h, 33); }),
            "hardware small has 32 devices, not 33: its outermost level 'slice' is not a switch, which could take more "
            "members; name a profile that has as many");
}

// A ring that is cut has no wrap link any more; one that is whole keeps it.
TEST(PartOfAMachine, OfATorusKeepsWholeRings) {
  HardwareProfile h = load_profile(kTwoNodes);
  h.links = {{"slice", 64, LinkKind::kTorus, {4, 4, 4}, 89e9, 1, 13e-6, true, 1}};
  h.devices = 64;
  EXPECT_EQ(with_devices(h, 64).links[0].kind, LinkKind::kTorus);
  EXPECT_EQ(with_devices(h, 16).links[0].kind, LinkKind::kTorus);
  EXPECT_EQ(with_devices(h, 4).links[0].kind, LinkKind::kTorus);
  EXPECT_EQ(with_devices(h, 8).links[0].kind, LinkKind::kMesh);
  EXPECT_EQ(with_devices(h, 2).links[0].kind, LinkKind::kMesh);
}

TEST(PartOfAMachine, RefusesWhatItHasNot) {
  HardwareProfile h = load_profile(kTwoNodes);
  EXPECT_THAT(error_of([&] { with_devices(h, 0); }), HasSubstr("0 devices make no machine; 1 is the least"));
  EXPECT_THAT(error_of([&] { with_devices(h, std::numeric_limits<int>::max()); }),
              HasSubstr("are more than the planner counts"));
  h.links.clear();
  h.devices = 1;
  EXPECT_EQ(with_devices(h, 1).devices, 1);
  EXPECT_EQ(error_of([&] { with_devices(h, 2); }),
            "hardware small has 1 device, not 2: it has no links; name a profile that has as many");
}

}  // namespace
}  // namespace zoetrope::planner
