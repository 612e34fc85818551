#include "planner/available.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/control_groups.h"

namespace zoetrope::planner {
namespace {

namespace fs = std::filesystem;

// Larger numbers stand for "no limit" (version 1 writes the largest page-aligned one).
constexpr int64_t kNoLimit = int64_t{1} << 60;

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
std::optional<int64_t> number_under(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return number_of(value);
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
void add_group(const ControlGroup& group, const AvailableQuery& query, std::vector<MemoryLimit>& limits) {
  const Version& version = group.unified ? kVersion2 : kVersion1;
  const std::optional<int64_t> used = number_in(group.folder / version.used);
  if (!used) return;
  Bytes files;
  for (const char* key : version.reclaimable)
    files += Bytes(number_under(group.folder / "memory.stat", key).value_or(0));
  for (const char* file : version.limits) {
    const std::optional<int64_t> limit = number_in(group.folder / file);
    if (!limit || *limit >= kNoLimit) continue;
    const Bytes free = Bytes(*limit) - (Bytes(*used) - files) + query.anonymous * query.processes;
    limits.push_back({fmt::format("{} of control group {}", file, group.name), free / query.processes});
  }
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const AvailableQuery& query) {
  std::vector<MemoryLimit> limits;
  if (query.user_limit) limits.push_back({"memory_limit", Bytes::of_gigabytes(*query.user_limit)});
  if (const auto kilobytes = number_under(query.root / "proc/meminfo", "MemAvailable:")) {
    const Bytes free = Bytes(*kilobytes) * 1024 + query.anonymous * query.processes;
    limits.push_back({"the free memory of this machine (MemAvailable)", free / query.processes});
  }
  for (const ControlGroup& group : control_groups(query.root, "memory")) add_group(group, query, limits);
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

std::optional<Bytes> tightest(const std::vector<MemoryLimit>& limits) {
  if (limits.empty()) return std::nullopt;
  return limits.front().available;
}

}  // namespace zoetrope::planner
