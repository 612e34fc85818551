#include "planner/available.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace zoetrope::planner {
namespace {

namespace fs = std::filesystem;

// Larger numbers stand for "no limit" (version 1 writes the largest page-aligned one).
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  if (!(stream >> word)) return std::nullopt;
  return number(word);  // "max" is none
}

// Address space that glibc's malloc takes for the heap of a thread, at first use (HEAP_MAX_SIZE).
constexpr int64_t kHeapReserve = int64_t{64} << 20;

// The same for its stack.
Bytes stack_reserve() {
  constexpr int64_t kUsual = int64_t{8} << 20;
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur == RLIM_INFINITY) return Bytes(kUsual);
  return Bytes(static_cast<int64_t>(std::min<rlim_t>(stack.rlim_cur, kNoLimit)));
}

// "KEY: 123 kB" or "KEY 123" among lines of such.
std::optional<int64_t> number_of(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return number(value);
  }
  return std::nullopt;
}

// Whether a word stands among others that commas part.
bool lists(const std::string& words, const std::string& word) {
  std::istringstream stream(words);
  for (std::string one; std::getline(stream, one, ',');)
    if (one == word) return true;
  return false;
}

// Where a hierarchy is mounted, and which of its groups is seen as the top of the mount.
struct Mount {
  fs::path point;
  std::string top;
};

// A line of mountinfo: "id parent dev ROOT POINT options … - TYPE source SUPEROPTIONS".
std::optional<Mount> find_mount(const fs::path& root, const std::string& type, const std::string& controller) {
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skip, top, point, found, source, options;
    before >> skip >> skip >> skip >> top >> point;
    after >> found >> source >> options;
    const bool has = controller.empty() || lists(options, controller);
    if (found == type && has) return Mount{root / fs::path(point).relative_path(), top};
  }
  return std::nullopt;
}

// The names of the files that say how much a group may have, has, and would give back.
struct Version {
  std::vector<const char*> limits;
  const char* used;
  std::vector<const char*> reclaimable;
};
const Version kVersion1{
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
const Version kVersion2{{"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};

// The limits of one group. Pages of files count as used, although they go when memory is wanted.
void add_group(const fs::path& folder, const std::string& name, const Version& version, const AvailableQuery& query,
               std::vector<MemoryLimit>& limits) {
  const std::optional<int64_t> used = number_in(folder / version.used);
  if (!used) return;
  Bytes files;
  for (const char* key : version.reclaimable) files += Bytes(number_of(folder / "memory.stat", key).value_or(0));
  for (const char* file : version.limits) {
    const std::optional<int64_t> limit = number_in(folder / file);
    if (!limit || *limit >= kNoLimit) continue;
    const Bytes free = Bytes(*limit) - (Bytes(*used) - files) + query.anonymous * query.processes;
    limits.push_back({fmt::format("{} of control group {}", file, name), free / query.processes});
  }
}

void add_groups(const Mount& mount, const std::string& group, const Version& version, const AvailableQuery& query,
                std::vector<MemoryLimit>& limits) {
  // Inside a container the path may be the host's while the mount shows the container's own group as its top.
  std::string below = group;
  if (mount.top != "/" && below.starts_with(mount.top)) below.erase(0, mount.top.size());
  fs::path path = fs::path(below).relative_path();
  std::error_code ignored;
  if (!fs::is_directory(mount.point / path, ignored)) path.clear();
  for (;;) {
    add_group(mount.point / path, (fs::path("/") / path).string(), version, query, limits);
    if (path.empty()) return;
    path = path.parent_path();
  }
}

// Lines of /proc/self/cgroup: "0::PATH" for version 2, "N:CONTROLLERS:PATH" for version 1.
void add_control_groups(const AvailableQuery& query, std::vector<MemoryLimit>& limits) {
  std::ifstream file(query.root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && !lists(controllers, "memory")) continue;
    const std::optional<Mount> mount =
        unified ? find_mount(query.root, "cgroup2", "") : find_mount(query.root, "cgroup", "memory");
    if (mount) add_groups(*mount, line.substr(second + 1), unified ? kVersion2 : kVersion1, query, limits);
  }
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const AvailableQuery& query) {
  std::vector<MemoryLimit> limits;
  if (query.user_limit) limits.push_back({"memory_limit", Bytes(static_cast<int64_t>(*query.user_limit * 1e9))});
  if (const auto kilobytes = number_of(query.root / "proc/meminfo", "MemAvailable:")) {
    const Bytes free = Bytes(*kilobytes) * 1024 + query.anonymous * query.processes;
    limits.push_back({"the free memory of this machine (MemAvailable)", free / query.processes});
  }
  add_control_groups(query, limits);
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    // Mapped files count as address space before they are resident; of what a thread reserves little ever is.
    const Bytes mapped = query.address_space - query.resident;
    const Bytes threads = (stack_reserve() + Bytes(kHeapReserve)) * query.threads_to_come;
    limits.push_back(
        {"the limit of the address space (ulimit -v), less files that are mapped and the stacks and heaps "
         "of threads; gaps between large tensors, 2 MB each, are not counted",
         Bytes(static_cast<int64_t>(std::min<rlim_t>(space.rlim_cur, kNoLimit))) - mapped - threads});
  }
  std::stable_sort(limits.begin(), limits.end(),
                   [](const MemoryLimit& a, const MemoryLimit& b) { return a.available < b.available; });
  return limits;
}

}  // namespace zoetrope::planner
