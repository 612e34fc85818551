#include "planner/calibrated.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/project_folders.h"

namespace zoetrope::planner {
namespace {

// Sets a variable of the environment for a test's time.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    if (value != nullptr) ::setenv(name, value, 1);
    else ::unsetenv(name);
  }
  ~Variable() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(CalibratedPath, IsInTheCacheFolder) {
  const Variable home("HOME", "/home/somebody");
  {
    const Variable cache("XDG_CACHE_HOME", "/var/cache");
    EXPECT_EQ(calibrated_profile_path(), "/var/cache/zoetrope/hardware.yml");
    EXPECT_EQ(calibrated_profile_path(4, 2), "/var/cache/zoetrope/hardware-4x2.yml");
  }
  {
    const Variable cache("XDG_CACHE_HOME", "relative");
    EXPECT_EQ(calibrated_profile_path(), "/home/somebody/.cache/zoetrope/hardware.yml");
  }
  const Variable cache("XDG_CACHE_HOME", nullptr), no_home("HOME", nullptr);
  EXPECT_TRUE(calibrated_profile_path().empty());
}

// Two hosts of two ranks on four cores.
HardwareProfile measured() {
  HardwareProfile profile;
  profile.name = "hardware";
  profile.devices = 4;
  profile.devices_per_host = 2;
  profile.device_memory = Bytes(int64_t{8} << 30);
  profile.bf16.peak = 400e9;
  profile.float32.peak = 200e9;
  profile.memory_bandwidth = 20e9;
  profile.layer_overhead = 1e-4;
  profile.token_seconds = 1e-6;
  LinkLevel host;
  host.name = kHostLevel;
  host.members = 2;
  host.kind = LinkKind::kBus;
  host.bandwidth = 10e9;
  host.overlap = 0;
  LinkLevel cluster;
  cluster.name = "cluster";
  cluster.members = 2;
  cluster.bandwidth = 1e9;
  profile.links = {host, cluster};
  profile.calibration = HardwareProfile::Calibration{"a CPU", 2, 4, 2, "2026-01-01"};
  return profile;
}

TEST(ProfileMismatches, AreEmptyOnTheSameMachineAndJob) {
  EXPECT_TRUE(profile_mismatches(measured(), {"a CPU", 2, 4, 2}).empty());
  HardwareProfile published = measured();
  published.calibration.reset();
  EXPECT_TRUE(profile_mismatches(published, {"another", 7, 7, 1}).empty());
}

TEST(ProfileMismatches, NameTheCpuAndTheJob) {
  const auto cpu = profile_mismatches(measured(), {"another", 2, 4, 2});
  ASSERT_EQ(cpu.size(), 1U);
  EXPECT_EQ(cpu[0], "it was measured on 'a CPU', but this is 'another'");
  const auto hosts = profile_mismatches(measured(), {"a CPU", 1, 4, 2});
  ASSERT_EQ(hosts.size(), 1U);
  EXPECT_EQ(hosts[0],
            "it was measured by 4 ranks of 2 threads on 2 hosts, but this job has 4 ranks of 2 threads on 1 host: the "
            "figures between hosts may differ");
  const auto both = profile_mismatches(measured(), {"another", 2, 2, 1});
  ASSERT_EQ(both.size(), 2U);
  EXPECT_NE(both[1].find("2 ranks of 1 thread on 2 hosts: the host's figures are rescaled"), std::string::npos);
}

TEST(ForRanks, LeavesTheSameJobAsItWas) {
  const HardwareProfile before = measured(), after = for_ranks(before, 2, 2, 4);
  EXPECT_EQ(after.devices, before.devices);
  EXPECT_EQ(after.device_memory, before.device_memory);
  EXPECT_DOUBLE_EQ(after.bf16.peak, before.bf16.peak);
  EXPECT_DOUBLE_EQ(after.token_seconds, before.token_seconds);
  EXPECT_DOUBLE_EQ(after.layer_overhead, before.layer_overhead);
  EXPECT_DOUBLE_EQ(after.memory_bandwidth, before.memory_bandwidth);
  ASSERT_EQ(after.links.size(), 2U);
  EXPECT_DOUBLE_EQ(after.links[0].bandwidth, before.links[0].bandwidth);
}

// Whatever the number of ranks, they have the host between them: not more, and with enough of them not less.
TEST(ForRanks, SharesTheHost) {
  const HardwareProfile before = measured();
  for (const int ranks : {1, 2, 3, 4, 7, 16}) {
    for (const int threads : {1, 2, 4}) {
      const HardwareProfile after = for_ranks(before, ranks, threads, 4);
      const double used = std::min(1.0, ranks * threads / 4.0);
      EXPECT_EQ(after.devices, 2 * ranks);
      EXPECT_EQ(after.devices_per_host, ranks);
      EXPECT_NEAR(after.bf16.peak * ranks, 800e9 * used, 1) << ranks << " ranks of " << threads;
      EXPECT_NEAR(after.float32.peak * ranks, 400e9 * used, 1);
      EXPECT_NEAR(after.memory_bandwidth * ranks, 40e9 * used, 1);
      EXPECT_NEAR(after.token_seconds / ranks, 0.5e-6 / used, 1e-12);
      EXPECT_LE(after.device_memory * ranks, before.device_memory * 2);
      EXPECT_EQ(after.links[0].members, ranks);
      EXPECT_EQ(after.links[1].members, 2);
      EXPECT_DOUBLE_EQ(after.links[1].bandwidth, 1e9);
    }
  }
}

TEST(ForRanks, CrowdedCoresLengthenWhatOneThreadDoes) {
  const HardwareProfile crowded = for_ranks(measured(), 4, 2, 4);
  EXPECT_DOUBLE_EQ(crowded.layer_overhead, 2e-4);
  // And the other way round: a profile of a crowded host, used by fewer ranks.
  HardwareProfile profile = crowded;
  profile.calibration->ranks = 8;
  const HardwareProfile alone = for_ranks(profile, 2, 2, 4);
  EXPECT_DOUBLE_EQ(alone.layer_overhead, 1e-4);
  EXPECT_DOUBLE_EQ(alone.bf16.peak, 400e9);
}

TEST(ForRanks, ABusGetsNoFasterThanMemory) {
  HardwareProfile profile = measured();
  EXPECT_DOUBLE_EQ(for_ranks(profile, 3, 1, 4).links[0].bandwidth, 15e9);  // three copy where two did
  EXPECT_DOUBLE_EQ(for_ranks(profile, 8, 1, 4).links[0].bandwidth, 20e9);  // eight on four cores
  profile.memory_bandwidth = 15e9;                                         // 30 of the host: 15 read, 15 written
  EXPECT_DOUBLE_EQ(for_ranks(profile, 4, 1, 4).links[0].bandwidth, 15e9);
  profile.memory_bandwidth = 5e9;  // a copy that stays in caches was faster than memory already
  EXPECT_DOUBLE_EQ(for_ranks(profile, 4, 1, 4).links[0].bandwidth, 10e9);
}

TEST(ForRanks, MakesALevelWhereNoneCouldBeMeasured) {
  HardwareProfile profile = measured();
  profile.links.erase(profile.links.begin());
  profile.devices = 2;
  profile.devices_per_host = 1;
  profile.calibration->ranks = 2;
  EXPECT_EQ(for_ranks(profile, 1, 2, 4).links.size(), 1U);
  const HardwareProfile after = for_ranks(profile, 2, 2, 4);
  ASSERT_EQ(after.links.size(), 2U);
  EXPECT_EQ(after.links[0].name, kHostLevel);
  EXPECT_EQ(after.links[0].members, 2);
  EXPECT_GT(after.links[0].bandwidth, 0);
  EXPECT_EQ(after.devices, 4);
}

TEST(ForRanks, CountsADeviceOfAnUncalibratedProfileAsACore) {
  HardwareProfile profile = measured();
  profile.calibration.reset();
  EXPECT_DOUBLE_EQ(for_ranks(profile, 1, 8, 8).bf16.peak, 8 * 400e9);
  EXPECT_DOUBLE_EQ(for_ranks(profile, 4, 1, 2).bf16.peak, 200e9);
  EXPECT_EQ(for_ranks(profile, 1, 8, 8).device_memory, profile.device_memory * 8);
  EXPECT_EQ(for_ranks(profile, 4, 1, 2).device_memory, profile.device_memory / 2);
}

// What decides where nobody calibrated: it must serve any job.
TEST(ForRanks, TheGeneralProfileServesAnyJob) {
  const HardwareProfile cpu = load_hardware(std::filesystem::path(kSourceFolder) / "configs" / "hardware" / "cpu.yml");
  for (const int hosts : {1, 2, 3})
    for (const int ranks : {1, 2, 4, 7})
      for (const int threads : {1, 8}) {
        const HardwareProfile job = with_devices(for_ranks(cpu, ranks, threads, 2), hosts * ranks);
        check_hardware(job, "cpu");
        EXPECT_GE(job.devices, hosts * ranks);
        EXPECT_EQ(job.devices_per_host, ranks);
        EXPECT_NEAR(job.float32.peak * ranks, cpu.float32.peak * std::min(2, ranks * threads), 1);
      }
}

}  // namespace
}  // namespace zoetrope::planner
