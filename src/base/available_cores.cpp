#include "base/available_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/control_groups.h"

namespace zoetrope {
namespace {

int affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than cpu_set_t can hold
}

// Microseconds of CPU time per period, and the period: "QUOTA PERIOD" in version 2, with "max" for no limit; two files
// in version 1, with -1.
std::optional<double> quota_of(const ControlGroup& group) {
  const auto quota = group.unified ? number_in(group.folder / "cpu.max") : number_in(group.folder / "cpu.cfs_quota_us");
  const auto period =
      group.unified ? number_in(group.folder / "cpu.max", 1) : number_in(group.folder / "cpu.cfs_period_us");
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

int AvailableCores::threads() const {
  if (!quota) return affinity;
  // Rounded up: with 1.5 cores, one thread would leave a third unused, and two are throttled at times.
  return std::max(1, static_cast<int>(std::min<double>(affinity, std::ceil(*quota))));
}

AvailableCores available_cores(const std::filesystem::path& root) {
  AvailableCores cores;
  cores.affinity = affinity();
  for (const ControlGroup& group : control_groups(root, "cpu")) {
    const std::optional<double> quota = quota_of(group);
    if (quota && (!cores.quota || *quota < *cores.quota)) cores.quota = quota;
  }
  return cores;
}

int available_threads() { return available_cores().threads(); }

}  // namespace zoetrope
