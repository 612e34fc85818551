#include "pipeline/planning/profile_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

#include "zoetrope/model.h"

#include "base/test_folder.h"
#include "kernels/cpu_features.h"
#include "machine/test_figures.h"
#include "pipeline/test_model.h"
#include "planner/calibrated.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A cache folder of its own, so that nothing that was calibrated here counts, and nothing is measured.
class ProfileChoiceTest : public testing::Test {
 protected:
  ProfileChoiceTest() {
    const char* before = std::getenv(kVariable);
    if (before != nullptr) before_ = before;
    ::setenv(kVariable, cache_.path().c_str(), 1);
    ::setenv("ZOETROPE_MEASURE", "no", 1);
    std::filesystem::create_directories(cache_ / "zoetrope");
  }
  ~ProfileChoiceTest() override {
    if (before_) ::setenv(kVariable, before_->c_str(), 1);
    else ::unsetenv(kVariable);
    ::unsetenv("ZOETROPE_MEASURE");
  }

  // As calibrated by a job of so many ranks of one thread.
  static std::string text(const std::string& cpu, int ranks) { return planner::hardware_yaml(profile(cpu, ranks)); }
  static planner::HardwareProfile profile(const std::string& cpu, int ranks) {
    planner::HardwareProfile profile = planner::with_devices(choose_profile("h100_8", job(1)).hardware, ranks);
    profile.description = "measured";
    profile.devices_per_host = ranks;
    profile.calibration = {cpu, 1, ranks, 1, "2026-01-02"};
    return profile;
  }
  static Job job(int ranks) {
    Job job;
    job.ranks = job.ranks_per_host = ranks;
    return job;
  }

  static constexpr const char* kVariable = "XDG_CACHE_HOME";
  const TestFolder cache_;
  std::optional<std::string> before_;
};

TEST_F(ProfileChoiceTest, WhereNobodyCalibratedItIsAnyCpu) {
  for (const int ranks : {1, 2, 4, 7}) {
    const ProfileChoice choice = choose_profile("", job(ranks));
    EXPECT_EQ(choice.origin, "profile 'cpu'");
    EXPECT_GE(choice.hardware.devices, ranks);
    EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("nobody calibrated this machine")));
  }
}

TEST_F(ProfileChoiceTest, SeveralHostsAreAnyCpusToo) {
  Job two_hosts = job(4);
  two_hosts.hosts = 2;
  two_hosts.ranks_per_host = 2;
  two_hosts.processes = true;
  const ProfileChoice choice = choose_profile("", two_hosts);
  EXPECT_GE(choice.hardware.devices, 4);
  EXPECT_EQ(choice.hardware.devices_per_host, 2);
  const auto assumes = [](const ProfileChoice& of) {
    return std::any_of(of.hardware.assumed.begin(), of.hardware.assumed.end(),
                       [](const auto& assumed) { return assumed.figure == "links.cluster.bandwidth"; });
  };
  EXPECT_TRUE(assumes(choice));
  two_hosts.links = HostLinks{1.25e7, 1e-4};  // 100 Mbit/s
  const ProfileChoice measured = choose_profile("", two_hosts);
  EXPECT_EQ(measured.hardware.links.back().bandwidth, 1.25e7);
  EXPECT_EQ(measured.hardware.links.back().latency, 1e-4);
  EXPECT_FALSE(assumes(measured));
  EXPECT_THAT(measured.notes, Contains(HasSubstr("between the 2 hosts 0.0125 GB/s each way and 100 µs")));
}

TEST_F(ProfileChoiceTest, WhatWasCalibratedHereIsUsed) {
  const auto file = cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 2));
  const ProfileChoice choice = choose_profile("", job(2));
  EXPECT_THAT(choice.origin, HasSubstr(file.string()));
  EXPECT_THAT(choice.origin, HasSubstr("measured 2026-01-02"));
  EXPECT_THAT(choice.notes, IsEmpty());
  EXPECT_EQ(choice.hardware.bf16.peak, choose_profile("h100_8", job(1)).hardware.bf16.peak);
}

TEST_F(ProfileChoiceTest, StaleIsUsedWithAWarning) {
  cache_.write("zoetrope/hardware.yml", text("a CPU that is not here", 2));
  ProfileChoice choice = choose_profile("", job(2));
  EXPECT_THAT(choice.origin, HasSubstr("hardware.yml"));
  EXPECT_THAT(choice.notes, ElementsAre(testing::AllOf(HasSubstr("warning"), HasSubstr("a CPU that is not here"),
                                                       HasSubstr("zoetrope calibrate"))));
  cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 2));
  choice = choose_profile("", job(4));
  EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("2 ranks")));
  EXPECT_GE(choice.hardware.devices, 4);
}

TEST_F(ProfileChoiceTest, WhatCannotBeReadIsSaid) {
  cache_.write("zoetrope/hardware.yml", "devices: 0\n");
  const ProfileChoice choice = choose_profile("", job(2));
  EXPECT_EQ(choice.origin, "profile 'cpu'");
  EXPECT_THAT(choice.notes, Contains(HasSubstr("cannot be used")));
  EXPECT_THAT(choice.notes, Contains(HasSubstr("hardware.yml")));
}

TEST_F(ProfileChoiceTest, ProcessesHaveAFileOfTheirShape) {
  cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 2));
  Job processes = job(2);
  processes.processes = true;
  ProfileChoice choice = choose_profile("", processes);
  EXPECT_THAT(choice.notes, Contains(HasSubstr("threads of one process")));
  const auto file = cache_.write("zoetrope/hardware-1x2.yml", text(kernels::cpu_model(), 2));
  choice = choose_profile("", processes);
  EXPECT_THAT(choice.origin, HasSubstr(file.string()));
  EXPECT_THAT(choice.notes, IsEmpty());
}

TEST_F(ProfileChoiceTest, OfProcessesTheNearestShapeIsUsed) {
  Job processes = job(4);
  processes.processes = true;
  const auto file = cache_.write("zoetrope/hardware-1x2.yml", text(kernels::cpu_model(), 2));
  cache_.write("zoetrope/hardware-1x16.yml", text(kernels::cpu_model(), 8));
  cache_.write("zoetrope/hardware-1x3.yml.old", "no profile");
  const ProfileChoice choice = choose_profile("", processes);
  EXPECT_THAT(choice.origin, HasSubstr(file.string()));
  EXPECT_THAT(choice.notes, ElementsAre(testing::AllOf(HasSubstr("warning"), HasSubstr("2 ranks"))));
  EXPECT_EQ(choice.hardware.devices_per_host, 4);
}

// What lies between hosts nobody measured on one.
TEST_F(ProfileChoiceTest, TwoHostsDoNotUseAFileOfOne) {
  Job two_hosts = job(4);
  two_hosts.hosts = two_hosts.ranks_per_host = 2;
  two_hosts.processes = true;
  cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 2));
  cache_.write("zoetrope/hardware-1x2.yml", text(kernels::cpu_model(), 2));
  ProfileChoice choice = choose_profile("", two_hosts);
  EXPECT_EQ(choice.origin, "profile 'cpu'");
  EXPECT_THAT(choice.notes, Contains(HasSubstr("hardware-1x2.yml, hardware.yml of one host")));
  planner::HardwareProfile several = profile(kernels::cpu_model(), 4);
  several.devices_per_host = 1;
  several.calibration->hosts = 4;
  const auto file = cache_.write("zoetrope/hardware-4x1.yml", planner::hardware_yaml(several));
  choice = choose_profile("", two_hosts);
  EXPECT_THAT(choice.origin, HasSubstr(file.string()));
  EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("on 4 hosts")));
}

TEST_F(ProfileChoiceTest, AJobOnCalibratedHostsIsAsTheyWere) {
  planner::HardwareProfile hosts = profile("a CPU", 4);
  hosts.devices_per_host = 2;
  hosts.calibration->hosts = 2;
  hosts.calibration->threads = 3;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Job made = job_on(hosts, ranks, {});
    EXPECT_EQ(made.ranks, ranks);
    EXPECT_EQ(made.ranks_per_host, std::min(ranks, 2));
    EXPECT_EQ(made.hosts, (ranks + 1) / 2);
    EXPECT_EQ(made.threads, ranks == 1 ? 6 : 3);  // one process has all cores, whatever was calibrated
    EXPECT_EQ(made.cores, 6);
    EXPECT_EQ(made.processes, ranks > 2);
  }
  EXPECT_EQ(job_on(hosts, 4, 2).threads, 2);  // of a process, which is a rank
  EXPECT_EQ(job_on(hosts, 2, 2).threads, 1);  // and here two
  hosts.calibration->hosts = 1;
  EXPECT_EQ(job_on(hosts, 4, 8).ranks_per_host, 4);
  EXPECT_EQ(job_on(hosts, 4, 8).threads, 2);
}

TEST_F(ProfileChoiceTest, ANameOrAFileWins) {
  cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 2));
  ProfileChoice choice = choose_profile("tpu_v7x_8", job(4));
  EXPECT_EQ(choice.origin, "profile 'tpu_v7x_8'");
  EXPECT_THAT(choice.notes, IsEmpty());
  const auto file = cache_.write("other.yml", text("a CPU that is not here", 2));
  choice = choose_profile(file.string(), job(2));
  EXPECT_EQ(choice.origin, "profile 'other'");
  EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("a CPU that is not here")));
}

TEST_F(ProfileChoiceTest, WhatIsNotThereIsRefused) {
  EXPECT_THAT(error_of([&] { choose_profile("h100_9", job(1)); }), HasSubstr("h100_8"));
  // Without a switch above it a slice of chips has no more of them.
  EXPECT_THAT(error_of([&] { choose_profile("tpu_v7x_8", job(64)); }), HasSubstr("8"));
}

// ---- measured on first use ----

TEST_F(ProfileChoiceTest, WhatWasMeasuredOnFirstUseIsUsed) {
  const machine::MachineKey here = machine::this_machine();
  machine::remember(machine::figures_path(here), here, {machine::test_figures(1), "2026-01-02", 1});
  Job one = job(1);
  one.threads = here.cores;
  ProfileChoice choice = choose_profile("", one, {.flop = 1});
  EXPECT_TRUE(choice.first_use);
  EXPECT_THAT(choice.origin, AllOf(HasSubstr("measured on first use 2026-01-02"), HasSubstr("zoetrope calibrate")));
  EXPECT_THAT(choice.notes, IsEmpty());
  EXPECT_NEAR(choice.hardware.bf16.peak / machine::test_figures(1).bf16.peak, 1, 1e-9);
  // What lies between hosts nobody has measured.
  Job two_hosts = one;
  two_hosts.ranks = two_hosts.hosts = 2;
  two_hosts.processes = true;
  choice = choose_profile("", two_hosts);
  EXPECT_TRUE(choice.first_use);
  EXPECT_EQ(choice.hardware.devices, 2);
  EXPECT_THAT(choice.notes, ElementsAre(HasSubstr("between the 2 hosts")));
  // A calibration knows more.
  cache_.write("zoetrope/hardware.yml", text(kernels::cpu_model(), 1));
  choice = choose_profile("", job(1));
  EXPECT_FALSE(choice.first_use);
  EXPECT_THAT(choice.origin, HasSubstr("hardware.yml"));
}

TEST_F(ProfileChoiceTest, FiguresOfAnotherMachineAreNotUsed) {
  machine::MachineKey other = machine::this_machine();
  other.cpu = "another CPU";
  machine::remember(machine::figures_path(other), other, {machine::test_figures(1), "2026-01-02", 1});
  machine::remember(machine::figures_path(machine::this_machine()), other, {machine::test_figures(1), "2026-01-02", 1});
  EXPECT_EQ(choose_profile("", job(1)).origin, "profile 'cpu'");
}

// With figures of a machine that is far too slow. What this cache saves is not known before the run.
TEST_F(ProfileChoiceTest, AStepCacheMakesNoMachineFaster) {
  const machine::MachineKey here = machine::this_machine();
  machine::Figures slow = machine::test_figures(1);
  slow.layer_overhead = 1;
  Model model = Model::open(recorded_model("wan21_t2v"));
  Request request;
  request.prompt = "a red cat";
  request.height = request.width = 32;
  request.num_frames = 5;
  request.num_inference_steps = 10;
  request.cache = sampling::StepCacheKind::kSen;
  const auto doubted_by_run = [&] {
    machine::remember(machine::figures_path(here), here, {slow, "2026-01-02", 1});
    const Video video = model.generate(request);
    EXPECT_EQ(video.step_cache->reused > 0, request.cache_threshold > 0);
    const auto remembered = machine::recall(machine::figures_path(here), here);
    return remembered && remembered->figures.core_share == 0;
  };
  request.cache_threshold = 0;
  EXPECT_TRUE(doubted_by_run());
  request.cache_threshold = 1000;
  EXPECT_FALSE(doubted_by_run());
}

// Profiles are of another day or another machine: what a plan may hold is what this one could give now, as for a run.
TEST_F(ProfileChoiceTest, MemoryIsThisMachines) {
  const std::string calibrated = text(kernels::cpu_model(), 2);  // 80 GB a rank
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  constexpr int64_t kGigabyte = 1'000'000'000;
  const auto limit = static_cast<rlim_t>(trace::virtual_bytes() + 2 * kGigabyte);
  if (before.rlim_cur < limit) GTEST_SKIP() << "the address space is limited already";
  const rlimit tight{limit, before.rlim_max};
  std::vector<int64_t> found;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  for (const bool calibrates : {false, true}) {
    if (calibrates) cache_.write("zoetrope/hardware.yml", calibrated);
    for (const int ranks : {1, 2})
      found.push_back(choose_profile("", job(ranks)).hardware.device_memory.count() * ranks);
  }
  const planner::Bytes named = choose_profile("cpu", job(1)).hardware.device_memory;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  for (const int64_t bytes : found) {
    EXPECT_LT(bytes, 2 * kGigabyte + trace::resident_bytes());
    EXPECT_GT(bytes, kGigabyte / 2);
  }
  EXPECT_EQ(named.count(), 8 * kGigabyte) << "a profile that is named says its own";
}

}  // namespace
}  // namespace zoetrope::pipeline
