// Profiles: what their files say, what is refused with which sentence, and what is written. Changing a profile is in
// hardware_change_test.cpp.
#include "planner/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/project_folders.h"
#include "base/test_folder.h"
#include "planner/hardware_figures.h"
#include "planner/hardware_test_profile.h"

namespace zoetrope::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path shipped_folder() { return std::filesystem::path(kSourceFolder) / "configs" / "hardware"; }

// What load_hardware says where `from` in the small profile is replaced by `to`.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kTwoNodes;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const TestFolder folder;
  const std::string path = folder.write("small.yml", text).string();
  const std::string said = error_of([&] { load_hardware(path); });
  EXPECT_THAT(said, HasSubstr(path));
  return said.starts_with(path) ? said.substr(path.size()) : said;
}

void expect_same(const HardwareProfile& a, const HardwareProfile& b) {
  EXPECT_EQ(hardware_yaml(a), hardware_yaml(b));  // the shortest texts of the same doubles
  EXPECT_EQ(a.device_memory, b.device_memory);
  EXPECT_EQ(a.bf16.peak, b.bf16.peak);
  EXPECT_EQ(a.token_seconds, b.token_seconds);
  ASSERT_EQ(a.links.size(), b.links.size());
  for (size_t i = 0; i < a.links.size(); ++i) {
    EXPECT_EQ(a.links[i].bandwidth, b.links[i].bandwidth);
    EXPECT_EQ(a.links[i].latency, b.links[i].latency);
    EXPECT_EQ(a.links[i].kind, b.links[i].kind);
    EXPECT_EQ(a.links[i].shape, b.links[i].shape);
  }
}

TEST(Hardware, ReadsUnitsToPlainOnes) {
  const HardwareProfile h = load_profile(kTwoNodes);
  EXPECT_EQ(h.name, "small");
  EXPECT_EQ(h.description, "two small nodes");
  EXPECT_EQ(h.devices, 8);
  EXPECT_EQ(h.device_memory, Bytes(80'000'000'000));
  EXPECT_EQ(h.bf16.peak, 989.4e12);
  EXPECT_EQ(h.memory_bandwidth, 3350e9);
  EXPECT_EQ(h.token_seconds, 0.3e-6);
  EXPECT_EQ(h.links[1].bandwidth, 48.5e9);
  EXPECT_EQ(h.links[1].latency, 12e-6);
  EXPECT_EQ(h.links[1].ports, 8);
  EXPECT_EQ(h.links[0].ports, 1);
  EXPECT_EQ(h.layer_overhead, 100e-6);
  EXPECT_EQ(h.bf16.attention.points().size(), 3u);
  EXPECT_EQ(h.bf16.gemm.at(17), 0.7);
  EXPECT_EQ(h.bf16.int8_gain, 1) << "where the file does not say it";
  EXPECT_EQ(h.bf16.int8_attention_gain, 1);
  EXPECT_FALSE(h.calibration);
}

TEST(Hardware, EveryShippedProfileIsReadAndWrittenBack) {
  const std::vector<std::string> names = hardware_names(shipped_folder());
  for (const char* known :
       {"tpu_v7x_8", "tpu_v7x_16", "tpu_v6e_8", "h100_8", "h200_8", "h100_2x8", "h100_8x8", "rtx4090_8", "gb200_nvl72"})
    EXPECT_THAT(names, ::testing::Contains(known));
  const TestFolder folder;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const HardwareProfile profile = find_hardware(name, shipped_folder());
    EXPECT_EQ(profile.name, name);
    EXPECT_FALSE(profile.description.empty());
    expect_same(load_hardware(folder.write(name + ".yml", hardware_yaml(profile))), profile);
  }
}

// Whatever else is tuned, these are published or given: docs/planner.md compares with runs on them.
TEST(Hardware, TpuV7xIsAsPublished) {
  const HardwareProfile h = find_hardware("tpu_v7x_8", shipped_folder());
  EXPECT_EQ(h.devices, 8);
  EXPECT_EQ(h.device_memory, Bytes(int64_t{96} << 30));
  EXPECT_EQ(h.bf16.peak, 1153.5e12);
  EXPECT_EQ(h.memory_bandwidth, 3690e9);
  ASSERT_EQ(h.links.size(), 2u);
  EXPECT_EQ(h.links[0].members, 2);
  EXPECT_EQ(h.links[0].bandwidth, 534e9);
  EXPECT_EQ(h.links[1].kind, LinkKind::kMesh);
  EXPECT_EQ(h.links[1].shape, (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(h.links[1].bandwidth, 89e9);
  EXPECT_NEAR(h.bf16.attention.at(9472), 0.561, 1e-9);
  EXPECT_NEAR(h.bf16.attention.at(9472) * h.bf16.fixed_max_gain, 0.609, 1e-9);
}

// Figures as measurements leave them: no round numbers.
TEST(Hardware, AnyFigureIsWrittenToTheLastBit) {
  HardwareProfile h = load_profile(kTwoNodes);
  h.links[0].bandwidth = 1e9 / 3;
  h.links[0].latency = 1e-6 / 7;
  h.links[1].bandwidth = std::nextafter(48.5e9, 1e12);
  h.bf16.peak = 0.1234567890123e12;
  h.token_seconds = 123.456789e-6;
  h.device_memory = Bytes(12'345'678'901);
  h.bf16.gemm = Curve({{1, 1.0 / 3}, {64.5, 2.0 / 3}});
  h.bf16.int8_gain = 1.7654;
  h.bf16.int8_attention_gain = 1.6543;
  h.bf16.attention_keys = Curve({{256, 0.5}, {1024, 0.9}});
  h.block_q_choices = {64, 128};
  h.links[1].full_duplex = false;
  h.calibration = HardwareProfile::Calibration{"Some \"CPU\": 2 GHz # fast", 2, 4, 1, "2026-01-31"};
  const TestFolder folder;
  const HardwareProfile back = load_hardware(folder.write("small.yml", hardware_yaml(h)));
  expect_same(back, h);
  EXPECT_EQ(back.bf16.gemm.points()[1].y, 2.0 / 3);
  EXPECT_EQ(back.bf16.int8_gain, 1.7654);
  EXPECT_EQ(back.bf16.int8_attention_gain, 1.6543);
  EXPECT_EQ(back.bf16.attention_keys.points()[0].x, 256);
  EXPECT_EQ(back.block_q_choices, h.block_q_choices);
  EXPECT_FALSE(back.links[1].full_duplex);
  ASSERT_TRUE(back.calibration);
  EXPECT_EQ(back.calibration->cpu, h.calibration->cpu);
  EXPECT_EQ(back.calibration->threads, 1);
}

TEST(Hardware, RemarksStandBehindTheirKeys) {
  const HardwareProfile h = load_profile(kTwoNodes);
  const std::string text = hardware_yaml(
      h, {{"links.node.bandwidth", "measured\nwith 4 MB"}, {"bf16.gemm", "of 256 rows"}, {"bf16.gemm", "twice"}});
  EXPECT_THAT(text, HasSubstr("    bandwidth: 370  # GB/s; measured with 4 MB\n"));
  EXPECT_THAT(text, HasSubstr("  gemm: 0.7  # of 256 rows; twice\n"));
  EXPECT_THAT(text, HasSubstr("    bandwidth: 48.5  # GB/s\n"));
  expect_same(load_profile(text), h);
}

TEST(HardwareRefusal, MissingFiguresAreNamedWithTheirUnit) {
  EXPECT_EQ(refusal("memory: 80\n", ""),
            ": memory: is missing; give it in GB (per device; where devices share a host's memory, its part)");
  EXPECT_EQ(refusal(", latency: 12", ""),
            ": links.cluster.latency: is missing; give it in microseconds (per message; on a grid per hop)");
  EXPECT_THAT(refusal("name: node, ", ""), HasSubstr(": links.0.name: is missing; give it"));
  EXPECT_EQ(refusal("float32: {peak: 67, gemm: 0.8, attention: 0.5}\n", ""),
            ": float32: is missing; give peak, gemm and attention of that dtype");
  EXPECT_THAT(refusal("peak: 67, ", ""), HasSubstr(": float32.peak: is missing; give it in TFLOP/s"));
  EXPECT_THAT(refusal("peak: 67", "peak:"), HasSubstr(": float32.peak: has no value"));
}

TEST(HardwareRefusal, UnknownKeysAreNamedWithTheNearest) {
  EXPECT_EQ(refusal("host_read", "host_raed"), ": host_raed: is unknown; did you mean 'host_read'?");
  EXPECT_EQ(refusal("bandwidth: 48.5", "bandwith: 48.5"),
            ": links.cluster.bandwith: is unknown; did you mean 'bandwidth'?");
  EXPECT_EQ(refusal("bf16:", "bf61:"), ": bf61: is unknown; did you mean 'bf16'?");
  EXPECT_THAT(refusal("gemm: 0.7", "zzz: 1, gemm: 0.7"), HasSubstr(": bf16.zzz: is unknown; known are peak, gemm"));
  EXPECT_THAT(refusal("memory: 80\n", "memory: 80\nmemory: 90\n"), HasSubstr("memory is given again, after line 3"));
}

TEST(HardwareRefusal, AbsurdValuesAreNamedWithWhatIsPossible) {
  EXPECT_EQ(refusal("bandwidth: 370", "bandwidth: -1"),
            ": links.node.bandwidth: -1 GB/s is out of range; 0.0001 to 100000 GB/s is possible");
  EXPECT_EQ(refusal("bandwidth: 370", "bandwidth: 0"),
            ": links.node.bandwidth: 0 GB/s is out of range; 0.0001 to 100000 GB/s is possible");
  EXPECT_EQ(refusal("memory: 80", "memory: .nan"), ": memory: '.nan' is not a finite number");
  EXPECT_EQ(refusal("memory: 80", "memory: 1e-2147483648"), ": memory: '1e-2147483648' is not a finite number");
  EXPECT_EQ(refusal("memory: 80", "memory: -80"), ": memory: -80 is negative");
  EXPECT_EQ(refusal("memory: 80", "memory: 80 GB"), ": memory: '80 GB' is not a finite number");
  EXPECT_EQ(refusal("gemm: 0.7", "gemm: 1.2"),
            ": bf16.gemm: 1.2 is out of range; 1e-06 to 1 is possible for a fraction of the peak");
  EXPECT_EQ(refusal("128: 0.3", "128: 3"),
            ": bf16.attention: 3 at 128 is out of range; 1e-06 to 1 is possible for a fraction of the peak");
  EXPECT_EQ(refusal("devices: 8", "devices: 8.5"), ": devices: '8.5' is not a whole number");
  EXPECT_EQ(refusal("devices: 8", "devices: 99999999999"),
            ": devices: 99999999999 is out of range; 2147483647 is the most that can be counted");
  EXPECT_EQ(refusal("ports: 8", "ports: 8, full_duplex: perhaps"),
            ": links.cluster.full_duplex: 'perhaps' is neither true nor false");
  EXPECT_EQ(refusal("kind: switch", "kind: swich"),
            ": links.node.kind: 'swich' is not a kind of link; one of: switch, mesh, torus, bus");
  EXPECT_EQ(refusal("ports: 8", "overlap: 1.5"), ": links.cluster.overlap: 1.5 is out of range; 0 to 1 is possible");
}

TEST(HardwareRefusal, TheWrongUnitIsRecognized) {
  EXPECT_EQ(
      refusal("bandwidth: 370", "bandwidth: 370e9"),
      ": links.node.bandwidth: 3.7e+11 GB/s is out of range; 0.0001 to 100000 GB/s is possible; if 3.7e+11 was in "
      "bytes/s, write 370");
  EXPECT_THAT(refusal("peak: 989.4", "peak: 989.4e12"), HasSubstr("if 9.894e+14 was in FLOP/s, write 989.4"));
  EXPECT_THAT(refusal("latency: 5", "latency: 5e-6"), HasSubstr("if 5e-06 was in seconds, write 5"));
  EXPECT_THAT(refusal("layer_overhead: 100", "layer_overhead: 0.0001"),
              HasSubstr("layer_overhead: 0.0001 microseconds is out of range; 0, or 0.01 to"));
}

TEST(HardwareRefusal, CurvesAscend) {
  EXPECT_EQ(refusal("64: 0.2, 128: 0.3", "128: 0.3, 64: 0.2"),
            ": bf16.attention: sizes must ascend, but 64 comes after 128");
  EXPECT_EQ(refusal("64: 0.2, 128: 0.3", "64: 0.2, 64.0: 0.3"), ": bf16.attention: the size 64 is given twice");
  EXPECT_EQ(refusal("64: 0.2", "0: 0.2"), ": bf16.attention: 0 is not a size; sizes are above 0");
  EXPECT_THAT(refusal("gemm: 0.7", "gemm: {}"), HasSubstr("bf16.gemm: a curve needs a point at least"));
  EXPECT_THAT(refusal("gemm: 0.7", "gemm: [0.5, 0.7]"), HasSubstr("bf16.gemm: '[0.5, 0.7]' is not a finite number"));
  EXPECT_THAT(refusal("gemm: 0.7", "gemm: {64: [1, 2]}"), HasSubstr("bf16.gemm: holds more than numbers"));
}

TEST(HardwareRefusal, FiguresAgreeWithEachOther) {
  EXPECT_EQ(refusal("devices: 8", "devices: 16"),
            ": devices: is 16, but the members of its link levels multiply to 8 (node 4 x cluster 2); they must be the "
            "same");
  EXPECT_EQ(refusal("members: 4, kind: switch", "members: 4, kind: mesh"),
            ": links.node.shape: is missing; a mesh needs it, as [columns, rows, …] that multiply to its 4 members");
  EXPECT_EQ(refusal("members: 4, kind: switch", "members: 4, kind: torus, shape: [2, 3]"),
            ": links.node.shape: 2 x 3 has 6 cells, but the level has 4 members; they must be the same");
  EXPECT_EQ(refusal("members: 4,", "members: 4, shape: 2x2,"),
            ": links.node.shape: only a mesh or torus has one; drop it or change the kind");
  EXPECT_EQ(refusal("members: 2, kind: switch", "members: 2, kind: bus"),
            ": links.cluster.ports: only a switch has ports; drop it or change the kind");
  EXPECT_EQ(refusal("devices_per_host: 4", "devices_per_host: 12"),
            ": devices_per_host: 12 are more than the 8 devices there are");
  EXPECT_EQ(refusal("attention: 0.5", "attention: 0.8, fixed_max_gain: 1.5"),
            ": float32.attention: with its factors (attention_keys, fixed_max_gain) it reaches 1.2 of the peak; 1 is "
            "the most");
  EXPECT_THAT(refusal("name: cluster", "name: node"), HasSubstr(": links: two levels are named 'node'"));
  EXPECT_THAT(refusal("name: cluster", "name: the.cluster"),
              HasSubstr(": links: 'the.cluster' is not a name of a level"));
}

TEST(HardwareRefusal, WhatIsNoProfile) {
  const TestFolder folder;
  const auto said = [&](const std::string& text) {
    return error_of([&] { load_hardware(folder.write("x.yml", text)); });
  };
  EXPECT_THAT(error_of([&] { load_hardware(folder / "none.yml"); }), HasSubstr("none.yml: no such file"));
  EXPECT_THAT(error_of([&] { load_hardware(folder.path()); }), HasSubstr("is a folder"));
  EXPECT_THAT(said("bf16: {peak"), HasSubstr("x.yml line 1: not YAML"));
  EXPECT_THAT(said(""), HasSubstr("x.yml: the file must hold `key: value` lines"));
  EXPECT_THAT(said("[1, 2]"), HasSubstr("x.yml: the file must hold `key: value` lines"));
  EXPECT_THAT(said("? [a, b]\n: 1\n"), HasSubstr("x.yml: : is unknown"));
  EXPECT_THAT(refusal("bf16: {peak: 989.4, gemm: 0.7, attention: {64: 0.2, 128: 0.3, 4096: 0.6}}", "bf16: 989"),
              HasSubstr(": bf16 must hold `key: value` lines"));
  EXPECT_THAT(refusal("links:\n", "links: 3\nx:\n"), HasSubstr("x: is unknown"));
}

TEST(Hardware, IsFoundByNameAndByPath) {
  const TestFolder folder;
  folder.write("big_8.yml", kTwoNodes);
  folder.write("small_4.yml", kTwoNodes);
  folder.write("notes.txt", "no profile");
  EXPECT_EQ(hardware_names(folder.path()), (std::vector<std::string>{"big_8", "small_4"}));
  EXPECT_EQ(hardware_names(folder / "none"), std::vector<std::string>());
  EXPECT_EQ(find_hardware("big_8", folder.path()).name, "big_8");
  EXPECT_EQ(find_hardware((folder / "small_4.yml").string(), "elsewhere").name, "small_4");
  EXPECT_THAT(error_of([&] { find_hardware("big_9", folder.path()); }),
              AllOf(HasSubstr("hardware 'big_9' is neither a file nor a profile of"),
                    HasSubstr("; there are: big_8, small_4"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error_of([&] { find_hardware("", folder.path()); }),
              HasSubstr("needs a name; there are: big_8, small_4"));
  EXPECT_THAT(error_of([&] { find_hardware("other/big_8.yml", folder.path()); }), HasSubstr("no such file"));
}

TEST(Hardware, IsThatOfTheFileAsItIsNow) {
  const TestFolder folder;
  HardwareProfile h = load_profile(kTwoNodes);
  for (const double peak : {1e12, 2e12, 3e12}) {  // of one length
    h.bf16.peak = peak;
    const auto path = folder.write("x.yml", hardware_yaml(h));
    EXPECT_EQ(load_hardware(path).bf16.peak, peak);
    EXPECT_EQ(load_hardware(path).bf16.peak, peak);
  }
  std::filesystem::remove(folder / "x.yml");
  EXPECT_THAT(error_of([&] { load_hardware(folder / "x.yml"); }), HasSubstr("no such file"));
}

TEST(Hardware, WhatIsAssumedHasItsTwoEnds) {
  const TestFolder folder;
  const auto with = [&](const std::string& lines) { return folder.write("x.yml", std::string(kTwoNodes) + lines); };
  const HardwareProfile h = load_hardware(with("assumed:\n  layer_overhead: [100, 2000]\n  bf16.gemm: [x0.8, x1.2]\n"));
  ASSERT_EQ(h.assumed.size(), 2U);
  EXPECT_EQ(h.assumed[0].figure, "layer_overhead");
  EXPECT_EQ(h.assumed[1].low, "x0.8");
  EXPECT_EQ(h.assumed[1].high, "x1.2");
  expect_same(load_hardware(folder.write("y.yml", hardware_yaml(h))), h);
  HardwareProfile said = h;
  set_figure(said, "layer_overhead", "50");
  ASSERT_EQ(said.assumed.size(), 1U);
  EXPECT_EQ(said.assumed[0].figure, "bf16.gemm");
  EXPECT_EQ(figure_text(said, "layer_overhead"), "50 microseconds");
  const auto refused = [&](const std::string& lines) { return error_of([&] { load_hardware(with(lines)); }); };
  EXPECT_THAT(refused("assumed: 3\n"), HasSubstr("x.yml: assumed: must hold `figure: [from, to]` lines"));
  EXPECT_THAT(refused("assumed:\n  layer_overhead: 3\n"),
              HasSubstr("x.yml: assumed.layer_overhead: must be the two ends"));
  EXPECT_THAT(refused("assumed:\n  layer_overhaed: [1, 2]\n"),
              HasSubstr("x.yml: assumed: hardware x has no figure 'layer_overhaed'; did you mean 'layer_overhead'?"));
  EXPECT_THAT(refused("assumed:\n  bf16.gemm: [x0.5, x3]\n"), HasSubstr("x.yml: assumed: bf16.gemm=x3: "));
  EXPECT_THAT(refused("assumed:\n  bf16.gemm: [x1, x1.2]\n  layer_overhead: [x0.5, x1]\n"), HasSubstr("no error"));
  // From high to low, and beside the figure.
  for (const char* range : {"layer_overhead: [2000, 100]", "layer_overhead: [x2, x3]", "layer_overhead: [x0.1, x0.5]",
                            "bf16.gemm: [x1.2, x0.8]", "bf16.gemm: [x0.5, x0.9]", "memory: [x1.5, x2]",
                            "devices_per_host: [1, 1]", "links.node.latency: [x2, x1]"}) {
    const std::string figure = std::string(range).substr(0, std::string(range).find(':'));
    EXPECT_THAT(
        refused("assumed:\n  " + std::string(range) + "\n"),
        AllOf(HasSubstr("x.yml: assumed." + std::string(range) + " must begin at or below the figure, which is "),
              HasSubstr(figure_text(h, figure)), HasSubstr(", and end at or above it")))
        << range;
  }
}

// Behind the figure or above it; the model's error and what is a choice of the plan's are no predictions.
TEST(Hardware, WhatShippedProfilesMarkAsAssumedIsListedAsSuch) {
  int marks = 0;
  for (const std::string& name : hardware_names(shipped_folder())) {
    const HardwareProfile profile = find_hardware(name, shipped_folder());
    std::istringstream lines(file_bytes(shipped_folder() / (name + ".yml")));
    std::string line, section, level;
    bool above = false;
    while (std::getline(lines, line)) {
      const size_t at = line.find_first_not_of(" -"), colon = line.find(':');
      if (at == std::string::npos) continue;
      const bool mark = line.find("[A]") != std::string::npos;
      if (line[at] == '#') {
        above = section.empty() ? false : mark;
        continue;
      }
      const std::string key = line.substr(at, colon - at);
      if (at == 0)
        section = line.find_first_not_of(' ', colon + 1) == std::string::npos ||
                          line[line.find_first_not_of(' ', colon + 1)] == '#'
                      ? key
                      : "";
      if (key == "name") level = line.substr(colon + 2, line.find(' ', colon + 2) - colon - 2);
      const std::string figure = section == "links" ? "links." + level + "." + key
                                 : section.empty()  ? key
                                                    : section + "." + key;
      if ((mark || above) && section != "assumed" && key != "model_error" && key != "memory" &&
          !key.starts_with("block_q")) {
        ++marks;
        EXPECT_TRUE(std::any_of(profile.assumed.begin(), profile.assumed.end(),
                                [&](const auto& a) { return a.figure == figure; }))
            << name << ": " << figure;
      }
      above = false;
    }
  }
  EXPECT_GT(marks, 50);
}

// What a program has filled is checked as a file is.
TEST(HardwareRefusal, ProfilesThatProgramsMake) {
  HardwareProfile h = load_profile(kTwoNodes);
  check_hardware(h, "made");
  h.bf16.gemm = Curve();
  EXPECT_EQ(error_of([&] { check_hardware(h, "made"); }), "made: bf16.gemm: is missing");
  h.bf16.gemm = Curve(1.01);
  EXPECT_THAT(error_of([&] { check_hardware(h, "made"); }), HasSubstr("made: bf16.gemm: 1.01 is out of range"));
  h.bf16.gemm = Curve(1.0);
  h.links[0].latency = std::nan("");
  EXPECT_THAT(error_of([&] { check_hardware(h, "made"); }), HasSubstr("made: links.node.latency: nan microseconds"));
}

TEST(Hardware, EveryFigureIsDocumented) {
  const std::string page = file_bytes(std::filesystem::path(kSourceFolder) / "docs" / "hardware.md");
  EXPECT_NE(page.find(figures_markdown()), std::string::npos) << "docs/hardware.md must hold:\n" << figures_markdown();
}

}  // namespace
}  // namespace zoetrope::planner
