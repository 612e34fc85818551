// The cores that this process may use: those of its affinity, limited by the CPU quota of its control groups.
#pragma once

#include <filesystem>
#include <optional>

namespace zoetrope {

struct AvailableCores {
  int affinity = 1;             // cores that its threads may run on
  std::optional<double> quota;  // in cores, shared with all processes of the group; unset: no limit

  // How many threads can run at once and use the whole quota; at least 1.
  int threads() const;
};

// `root`: where proc/ and the mounts are.
AvailableCores available_cores(const std::filesystem::path& root = "/");

int available_threads();  // available_cores().threads()

}  // namespace zoetrope
