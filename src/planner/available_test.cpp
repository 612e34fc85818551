// Limits are read from folders that look like /proc and /sys/fs/cgroup, and from the machine itself.
#include "planner/available.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/test_folder.h"

namespace zoetrope::planner {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMegabyte = 1'000'000;

class FakeMachine {
 public:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((folder_ / path).parent_path());
    folder_.write(path, text);
  }
  std::vector<MemoryLimit> limits(AvailableQuery query = {}) const {
    query.root = folder_.path();
    return memory_limits(query);
  }

 private:
  TestFolder folder_;
};

const MemoryLimit* find(const std::vector<MemoryLimit>& limits, const std::string& words) {
  for (const MemoryLimit& limit : limits)
    if (limit.what.find(words) != std::string::npos) return &limit;
  return nullptr;
}

TEST(Available, ReadsWhatTheMachineHasFree) {
  const FakeMachine machine;
  machine.write("proc/meminfo", "MemTotal:       24684092 kB\nMemAvailable:   1000 kB\n");
  AvailableQuery query;
  query.resident = Bytes(90'000);  // of which pages of files are among what is free
  query.anonymous = Bytes(24'000);
  EXPECT_EQ(find(machine.limits(query), "MemAvailable")->available, Bytes(1000 * 1024 + 24'000));
  // Four such processes share what is free, and each has its own already.
  query.processes = 4;
  EXPECT_EQ(find(machine.limits(query), "MemAvailable")->available, Bytes(1000 * 1024 / 4 + 24'000));
}

TEST(Available, TheUserMayAllowLess) {
  const FakeMachine machine;
  machine.write("proc/meminfo", "MemAvailable: 8000000 kB\n");
  AvailableQuery query;
  query.user_limit = 1.5;
  const auto limits = machine.limits(query);
  EXPECT_EQ(limits.front().what, "memory_limit");
  EXPECT_EQ(tightest(limits), Bytes(1'500'000'000));
}

// The group's own limit leaves more than its parent's.
TEST(Available, WalksUpTheGroupsOfVersion2) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "0::/user/job\n");
  machine.write("proc/self/mountinfo", "36 25 0:31 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  const std::string top = "sys/fs/cgroup/";
  machine.write(top + "user/job/memory.max", "900000000\n");
  machine.write(top + "user/job/memory.high", "max\n");
  machine.write(top + "user/job/memory.current", "100000000\n");
  machine.write(top + "user/job/memory.stat", "anon 40000000\ninactive_file 50000000\nactive_file 10000000\n");
  machine.write(top + "user/memory.max", "max\n");
  machine.write(top + "user/memory.high", "700000000\n");
  machine.write(top + "user/memory.current", "300000000\n");
  machine.write(top + "user/memory.stat", "inactive_file 0\nactive_file 0\n");
  const auto limits = machine.limits();
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_EQ(limits[0].what, "memory.high of control group /user");
  EXPECT_EQ(limits[0].available, Bytes(400 * kMegabyte));
  EXPECT_EQ(limits[1].what, "memory.max of control group /user/job");
  EXPECT_EQ(limits[1].available, Bytes(860 * kMegabyte));
  // The process' own pages of files are free already; only the others are given to it on top.
  AvailableQuery query;
  query.resident = Bytes(30 * kMegabyte);
  query.anonymous = Bytes(20 * kMegabyte);
  EXPECT_EQ(machine.limits(query)[1].available, Bytes(880 * kMegabyte));
}

TEST(Available, WalksUpTheGroupsOfVersion1) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "5:cpu:/a\n4:memory,hugetlb:/a/b\n0::/\n");
  machine.write("proc/self/mountinfo",
                "31 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                "32 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,hugetlb\n");
  const std::string top = "sys/fs/cgroup/memory/";
  machine.write(top + "a/b/memory.limit_in_bytes", "500000000\n");
  machine.write(top + "a/b/memory.usage_in_bytes", "200000000\n");
  machine.write(top + "a/b/memory.stat", "cache 1\ntotal_inactive_file 20000000\ntotal_active_file 0\n");
  machine.write(top + "a/memory.limit_in_bytes", "9223372036854771712\n");  // none
  machine.write(top + "a/memory.usage_in_bytes", "200000000\n");
  const auto limits = machine.limits();
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].what, "memory.limit_in_bytes of control group /a/b");
  EXPECT_EQ(limits[0].available, Bytes(320 * kMegabyte));
}

// A container sees its own group as the top of the mount while /proc names the host's path.
TEST(Available, FindsTheGroupOfAContainer) {
  for (const char* top : {"/docker/abc", "/"}) {
    const FakeMachine machine;
    machine.write("proc/self/cgroup", "0::/docker/abc\n");
    machine.write("proc/self/mountinfo",
                  std::string("36 25 0:31 ") + top + " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    machine.write("sys/fs/cgroup/memory.max", "500000000\n");
    machine.write("sys/fs/cgroup/memory.current", "1000000\n");
    const auto limits = machine.limits();
    ASSERT_EQ(limits.size(), 1u) << top;
    EXPECT_EQ(limits[0].available, Bytes(499 * kMegabyte)) << top;
  }
}

TEST(Available, FullGroupsHaveNothingLeft) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("proc/self/mountinfo", "36 25 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  machine.write("sys/fs/cgroup/memory.max", "1000\n");
  machine.write("sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(machine.limits().front().available, Bytes());
}

TEST(Available, UnreadableFilesAreNoLimit) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "nonsense\n0::/gone\n4:memory:/gone\n");
  machine.write("proc/self/mountinfo", "also nonsense\n36 25 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  machine.write("proc/meminfo", "MemAvailable: many kB\n");
  EXPECT_TRUE(machine.limits().empty());
  EXPECT_EQ(tightest({}), std::nullopt);
}

TEST(Available, TheAddressSpaceCountsMappedFiles) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = rlim_t{1} << 50;  // more than there are addresses: thread sanitizers map nearly all of them
  AvailableQuery query;
  query.resident = Bytes(10 * kMegabyte);
  query.address_space = Bytes(110 * kMegabyte);
  if (::setrlimit(RLIMIT_AS, &limited) != 0) return;  // the machine's own limit is lower
  const auto limits = FakeMachine().limits(query);
  query.threads_to_come = 2;
  const auto with_threads = FakeMachine().limits(query);
  ::setrlimit(RLIMIT_AS, &before);
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_NE(limits[0].what.find("ulimit -v"), std::string::npos);
  EXPECT_EQ(limits[0].available, Bytes((int64_t{1} << 50) - 100 * kMegabyte));
  // A thread reserves 64 MiB of heap, and its stack.
  ASSERT_EQ(with_threads.size(), 1u);
  EXPECT_LT(with_threads[0].available, limits[0].available - Bytes(2 * (int64_t{64} << 20)));
}

TEST(Available, ThisMachineHasSome) {
  const auto limits = memory_limits({});
  ASSERT_FALSE(limits.empty());
  EXPECT_GT(limits.front().available, Bytes(kMegabyte));
}

}  // namespace
}  // namespace zoetrope::planner
