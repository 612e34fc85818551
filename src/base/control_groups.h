// The control groups of this process (Linux, versions 1 and 2), which say how much memory and time it may have.
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

// The process' own groups in the hierarchies that may hold this controller ("memory", "cpu"), each followed by those
// above it, up to the top of what is mounted: a limit of any of them holds. Empty where there are none or /proc cannot
// be read. `root` is where proc/ and what it says is mounted are looked for.
std::vector<ControlGroup> control_groups(const std::filesystem::path& root, const std::string& controller);

// A whole number ≥ 0; none for any other text ("max", "-1").
std::optional<int64_t> number_of(std::string_view text);
// That of a file's first or a later word; none where there is no such file or word.
std::optional<int64_t> number_in(const std::filesystem::path& file, int word = 0);

}  // namespace zoetrope
