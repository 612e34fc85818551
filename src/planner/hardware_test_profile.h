// For tests: a profile of two levels as the text of its file, with round figures that no machine has.
#pragma once

#include <string>

#include "base/test_folder.h"
#include "planner/hardware.h"

namespace zoetrope::planner {

inline constexpr const char* kTwoNodes = R"(description: two small nodes
devices: 8
memory: 80
memory_bandwidth: 3350
layer_overhead: 100
token_seconds: 0.3
host_read: 5
disk_read: 2.5
devices_per_host: 4
price_per_hour: 16
bf16: {peak: 989.4, gemm: 0.7, attention: {64: 0.2, 128: 0.3, 4096: 0.6}}
float32: {peak: 67, gemm: 0.8, attention: 0.5}
links:
  - {name: node, members: 4, kind: switch, bandwidth: 370, latency: 5}
  - {name: cluster, members: 2, kind: switch, bandwidth: 48.5, latency: 12, ports: 8}
)";

inline HardwareProfile load_profile(const std::string& text) {
  const TestFolder folder;
  return load_hardware(folder.write("small.yml", text));
}

}  // namespace zoetrope::planner
