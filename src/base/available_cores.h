// The cores that this process may use: those of its affinity, and what its control groups give it of their time.
#pragma once

#include <filesystem>
#include <optional>

namespace zoetrope {

struct AvailableCores {
  int affinity = 1;             // cores that its threads may run on
  std::optional<double> quota;  // so many cores' time, shared with whatever else is in the group; unset: all of it

  // As many threads as can run at once, and use all of the quota: at least 1.
  int threads() const;
};

// `root`: where proc/ and what it mounts are looked for.
AvailableCores available_cores(const std::filesystem::path& root = "/");

int available_threads();  // available_cores().threads()

}  // namespace zoetrope
