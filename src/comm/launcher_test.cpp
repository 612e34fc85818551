// Launched or not: decided from the environment alone.
#include "comm/launcher.h"

#include <gtest/gtest.h>

#include <map>

#include "device/thread_team.h"

namespace zoetrope::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_of(const Variables& variables) {
  return read_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launcher, KnowsWhoStartsRanks) {
  const Launch open_mpi = launch_of(
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "1"}});
  EXPECT_TRUE(open_mpi.found);
  EXPECT_EQ(open_mpi.rank, 2);
  EXPECT_EQ(open_mpi.ranks, 4);
  EXPECT_EQ(launch_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "8"}}).ranks, 8);
  EXPECT_EQ(launch_of({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm"}, {"SLURM_STEP_NUM_TASKS", "6"}}).rank, 3);
}

TEST(Launcher, IsNotFooledByAShellInAnAllocationOrByHalfAnEnvironment) {
  EXPECT_FALSE(launch_of({}).found);
  EXPECT_EQ(launch_of({}).ranks, 1);
  EXPECT_FALSE(launch_of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}}).found);
  EXPECT_FALSE(launch_of({{"OMPI_COMM_WORLD_SIZE", "4"}}).found);
  EXPECT_FALSE(launch_of({{"OMPI_MCA_btl", "self"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"}}).found);
  EXPECT_FALSE(launch_of({{"PMI_RANK", "9"}, {"PMI_SIZE", "8"}}).found);
  EXPECT_FALSE(launch_of({{"PMI_RANK", "x"}, {"PMI_SIZE", "8"}}).found);
}

TEST(Launcher, LeavesThreadsToTheUserElseTakesWhatThisProcessHas) {
  EXPECT_EQ(process_threads(37), 37);
  EXPECT_GE(process_threads({}), 1);
  EXPECT_LE(process_threads({}), available_threads());
}

TEST(Launcher, ProcessesOfANodeShareItsQuotaAndCoresThatTheyAreNotBoundTo) {
  constexpr int kNode = 8;
  EXPECT_EQ(threads_beside({8, std::nullopt}, 2, kNode), 4);
  EXPECT_EQ(threads_beside({4, std::nullopt}, 2, kNode), 4);  // bound to half of the cores each
  EXPECT_EQ(threads_beside({8, 6.0}, 2, kNode), 3);
  EXPECT_EQ(threads_beside({4, 6.0}, 2, kNode), 3);
  EXPECT_EQ(threads_beside({1, 6.0}, 2, kNode), 1);
  EXPECT_EQ(threads_beside({8, 0.5}, 2, kNode), 1);
  EXPECT_EQ(threads_beside({4, std::nullopt}, 4, kNode), 2);  // two on each half
  EXPECT_EQ(threads_beside({1, std::nullopt}, 12, kNode), 1);
}

}  // namespace
}  // namespace zoetrope::comm
