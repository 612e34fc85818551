// Quotas are read from folders that look like /proc and /sys/fs/cgroup.
#include "base/available_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "base/test_folder.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

class FakeMachine {
 public:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((folder_.path() / path).parent_path());
    folder_.write(path, text);
  }
  std::optional<double> quota() const { return available_cores(folder_.path()).quota; }

 private:
  TestFolder folder_;
};

class Version2 : public FakeMachine {
 public:
  Version2() {
    write("proc/self/cgroup", "0::/user/job\n");
    write("proc/self/mountinfo", "36 25 0:31 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
};

// The group above allows less than the process' own.
TEST(AvailableCores, TakesTheTightestQuotaOfVersion2) {
  const Version2 machine;
  machine.write("sys/fs/cgroup/user/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(machine.quota(), 4.0);
  machine.write("sys/fs/cgroup/user/cpu.max", "75000 50000\n");
  EXPECT_EQ(machine.quota(), 1.5);
}

TEST(AvailableCores, TakesTheTightestQuotaOfVersion1) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "5:cpu,cpuacct:/a/b\n4:memory:/m\n1:cpuset:/a\n0::/\n");
  machine.write("proc/self/mountinfo",
                "30 25 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "31 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  const std::string top = "sys/fs/cgroup/cpu,cpuacct/";
  machine.write(top + "a/b/cpu.cfs_quota_us", "-1\n");
  machine.write(top + "a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.quota(), std::nullopt);
  machine.write(top + "a/cpu.cfs_quota_us", "250000\n");
  machine.write(top + "a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.quota(), 2.5);
}

TEST(AvailableCores, HasNoQuotaWhereNoneIsSet) {
  const Version2 machine;
  EXPECT_EQ(machine.quota(), std::nullopt);
  for (const char* text : {"max 100000\n", "max\n", "nonsense\n", "", "100000\n", "100000 0\n"}) {
    machine.write("sys/fs/cgroup/user/job/cpu.max", text);
    EXPECT_EQ(machine.quota(), std::nullopt) << text;
  }
}

TEST(AvailableCores, ThreadsUseAllOfAQuotaAndNoMoreThanTheAffinity) {
  EXPECT_EQ((AvailableCores{8, std::nullopt}.threads()), 8);
  EXPECT_EQ((AvailableCores{8, 2.0}.threads()), 2);
  EXPECT_EQ((AvailableCores{8, 1.5}.threads()), 2);
  EXPECT_EQ((AvailableCores{8, 0.1}.threads()), 1);
  EXPECT_EQ((AvailableCores{2, 64.0}.threads()), 2);
}

TEST(AvailableCores, CountsTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const AvailableCores cores = available_cores();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(cores.affinity, 1);
  EXPECT_EQ(cores.threads(), 1);
}

}  // namespace
}  // namespace zoetrope
