// Profiles: what they say, refuse and write; curves, what_if, parts of machines.
#include "planner/hardware.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"

namespace zoetrope::planner {
namespace {

constexpr const char* kTwoNodes = R"(description: two small nodes
devices: 8
memory: 80
memory_bandwidth: 3350
layer_overhead: 100
token_seconds: 0.3
host_read: 5
devices_per_host: 4
bf16: {peak: 989, gemm: 0.7, attention: {64: 0.2, 128: 0.3, 4096: 0.6}}
float32: {peak: 67, gemm: 0.8, attention: 0.5}
links:
  - {name: node, members: 4, kind: switch, bandwidth: 370, latency: 5}
  - {name: cluster, members: 2, kind: switch, bandwidth: 48.5, latency: 12, ports: 8}
)";

HardwareProfile load(const std::string& text) {
  const TestFolder folder;
  return load_hardware(folder.write("small.yml", text));
}

TEST(Hardware, ReadsUnitsToPlainOnes) {
  const HardwareProfile h = load(kTwoNodes);
  EXPECT_EQ(h.name, "small");
  EXPECT_EQ(h.devices, 8);
  EXPECT_EQ(h.device_memory, Bytes(80'000'000'000));
  EXPECT_EQ(h.bf16.peak, 989e12);
  EXPECT_EQ(h.links[1].bandwidth, 48.5e9);
  EXPECT_EQ(h.links[1].latency, 12e-6);
  EXPECT_EQ(h.links[1].ports, 8);
  EXPECT_EQ(h.layer_overhead, 100e-6);
}

}  // namespace
}  // namespace zoetrope::planner
