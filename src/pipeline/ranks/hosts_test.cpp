#include "pipeline/ranks/hosts.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

namespace zoetrope::pipeline {
namespace {

// The cores that this thread may use.
std::vector<int> cores_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void bind_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

TEST(Hosts, RanksOfOneMachineAreOnOneHost) {
  comm::run_ranks(3, [](comm::Communicator& world) {
    const std::vector<std::string> hosts = hosts_of_ranks(world);
    ASSERT_EQ(hosts.size(), 3U);
    EXPECT_FALSE(hosts[0].empty());
    EXPECT_EQ(std::count(hosts.begin(), hosts.end(), hosts[0]), 3);
  });
}

// Ranks are threads here, and a thread is bound as a process of mpirun is.
TEST(Hosts, BoundRanksHaveTheCoresOfAllOfThem) {
  const std::vector<int> all = cores_here();
  const int most = static_cast<int>(std::min<size_t>(all.size(), 4));
  for (int ranks = 1; ranks <= most; ++ranks) {
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      bind_to({all[static_cast<size_t>(world.rank())]});
      EXPECT_EQ(cores_of_hosts(world), ranks);
      bind_to({all[0]});
      EXPECT_EQ(cores_of_hosts(world), 1) << "all of them on one core";
      bind_to(all);
      EXPECT_EQ(cores_of_hosts(world), static_cast<int>(all.size())) << "none of them bound";
    });
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
