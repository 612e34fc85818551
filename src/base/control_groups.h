// The control groups of this process (Linux, versions 1 and 2), which limit its memory and CPU time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope {

struct ControlGroup {
  std::filesystem::path folder;  // of its files
  std::string name;              // "/user/job", as the mount shows it
  bool unified;                  // of version 2
};

// The groups of this process in the hierarchies that may have this controller ("memory", "cpu"), each followed by its
// parents up to the top of the mount: the limits of all of them apply. Empty if there are none or /proc cannot be read.
// `root`: where proc/ and the mounts are.
std::vector<ControlGroup> control_groups(const std::filesystem::path& root, const std::string& controller);

// A whole number ≥ 0; empty for any other text ("max", "-1").
std::optional<int64_t> number_of(std::string_view text);
// The number that is a word of a file, by default the first; empty if there is no such file or word.
std::optional<int64_t> number_in(const std::filesystem::path& file, int word = 0);

}  // namespace zoetrope
