#include "pipeline/ranks/hosts.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "device/thread_team.h"

namespace zoetrope::pipeline {
namespace {

using Name = std::array<char, 256>;

Name host_here() {
  Name name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    fail("the name of this host cannot be read: {}", std::strerror(errno));
  return name;
}

struct RankCores {
  Name host{};
  cpu_set_t mask;     // stays empty where the host has more cores than a set
  int available = 1;  // how many there are all the same
};

RankCores cores_here() {
  RankCores mine;
  mine.host = host_here();
  CPU_ZERO(&mine.mask);
  if (sched_getaffinity(0, sizeof mine.mask, &mine.mask) != 0) CPU_ZERO(&mine.mask);
  mine.available = available_threads();
  return mine;
}

}  // namespace

std::vector<std::string> hosts_of_ranks(comm::Communicator& world) {
  const Name mine = host_here();
  std::vector<Name> all(static_cast<size_t>(world.size()));
  world.all_gather(mine.data(), all.data(), mine.size(), "host names");
  std::vector<std::string> hosts;
  for (const Name& name : all) hosts.emplace_back(name.data());
  return hosts;
}

int processes_on_this_host(comm::Communicator& world) {
  const int here = world.ranks_in_this_process();
  if (here == world.size()) return 1;
  const std::vector<std::string> hosts = hosts_of_ranks(world);
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(world.rank())])) / here;
}

int cores_of_hosts(comm::Communicator& world) {
  const RankCores mine = cores_here();
  std::vector<RankCores> all(static_cast<size_t>(world.size()));
  world.all_gather(&mine, all.data(), sizeof mine, "cores of hosts");
  std::map<std::string, RankCores> hosts;
  for (const RankCores& rank : all) {
    const auto [at, first] = hosts.try_emplace(rank.host.data(), rank);
    if (first) continue;
    CPU_OR(&at->second.mask, &at->second.mask, &rank.mask);
    at->second.available = std::max(at->second.available, rank.available);
  }
  const auto cores = [](const RankCores& host) { return std::max(CPU_COUNT(&host.mask), host.available); };
  int fewest = cores(hosts.begin()->second);
  for (const auto& [name, host] : hosts) fewest = std::min(fewest, cores(host));
  return fewest;
}

}  // namespace zoetrope::pipeline
