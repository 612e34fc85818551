#include "base/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "base/words.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

// Whether a comma-separated list has a word.
bool lists(const std::string& words, const std::string& word) {
  const std::vector<std::string_view> parts = split(words, ',');
  return std::find(parts.begin(), parts.end(), word) != parts.end();
}

// Where a hierarchy is mounted, and which of its groups is the top of the mount.
struct Mount {
  fs::path point;
  std::string top;
};

// A line of mountinfo: "id parent dev ROOT POINT options … - TYPE source SUPEROPTIONS".
std::optional<Mount> find_mount(const fs::path& root, const std::string& type, const std::string& controller) {
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos || !std::string_view(line).substr(dash + 3).starts_with(type + ' ')) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skip, top, point, source, options;
    before >> skip >> skip >> skip >> top >> point;
    after >> skip >> source >> options;
    if (controller.empty() || lists(options, controller)) return Mount{root / fs::path(point).relative_path(), top};
  }
  return std::nullopt;
}

void add_groups(const Mount& mount, const std::string& group, bool unified, std::vector<ControlGroup>& groups) {
  // Inside a container the path may be the host's while the mount shows the container's own group as its top.
  std::string below = group;
  if (mount.top != "/" && below.starts_with(mount.top)) below.erase(0, mount.top.size());
  fs::path path = fs::path(below).relative_path();
  std::error_code ignored;
  if (!fs::is_directory(mount.point / path, ignored)) path.clear();
  for (;;) {
    groups.push_back({mount.point / path, (fs::path("/") / path).string(), unified});
    if (path.empty()) return;
    path = path.parent_path();
  }
}

}  // namespace

// Lines of /proc/self/cgroup: "0::PATH" for version 2, "N:CONTROLLERS:PATH" for version 1.
std::vector<ControlGroup> control_groups(const fs::path& root, const std::string& controller) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && !lists(controllers, controller)) continue;
    const std::optional<Mount> mount =
        unified ? find_mount(root, "cgroup2", "") : find_mount(root, "cgroup", controller);
    if (mount) add_groups(*mount, line.substr(second + 1), unified, groups);
  }
  return groups;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> number_in(const fs::path& file, int word) {
  std::ifstream stream(file);
  std::string text;
  for (int i = 0; i <= word; ++i) {
    if (!(stream >> text)) return std::nullopt;
  }
  return number_of(text);
}

}  // namespace zoetrope
