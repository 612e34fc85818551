// How runs under mpirun end: the error once, no rank left, an exit code that says so. Starts mpirun on the scenarios of
// run_mpi_driver.cpp.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

namespace {

struct Outcome {
  int exit_code = 0;
  std::string output;  // both streams
};

Outcome run(const std::string& scenario, int ranks = 4, const std::string& settings = "") {
  // `timeout` so that a hang fails this test alone.
  const std::string command = "timeout -k 1 60 " ZOETROPE_MPIRUN " " + settings + " -n " + std::to_string(ranks) +
                              " " ZOETROPE_RUN_MPI_DRIVER " " + scenario + " 2>&1";
  Outcome result;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) result.output.append(buffer.data(), count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  // A sanitizer's exit code alone would pass for the failure that a scenario asks for.
  EXPECT_EQ(result.output.find("Sanitizer: "), std::string::npos) << result.output;
  return result;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// One error, this one, and nothing about ranks that stopped in consequence.
void expect_one_error(const Outcome& result, const std::string& error) {
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_NE(result.exit_code, 124) << "hangs\n" << result.output;
  EXPECT_EQ(count(result.output, "zoetrope: " + error), 1) << result.output;
  EXPECT_EQ(count(result.output, "zoetrope: "), 1) << result.output;
  EXPECT_EQ(count(result.output, "stopped in"), 0) << result.output;
  EXPECT_EQ(count(result.output, "Signal:"), 0) << result.output;  // Open MPI's report of a crash
}

void expect_clean_end(const Outcome& result) {
  EXPECT_EQ(count(result.output, "MPI_ABORT"), 0) << result.output;
  EXPECT_EQ(count(result.output, "improperly"), 0) << result.output;
}

void expect_stopped_process_is_gone(const Outcome& result) {
  const size_t at = result.output.find("stopped ");
  ASSERT_NE(at, std::string::npos) << result.output;
  const int pid = std::atoi(result.output.c_str() + at + 8);
  ASSERT_GT(pid, 1);
  // mpirun kills it and goes; the process may take a moment longer, and then waits as a zombie for whoever inherits it.
  const auto gone = [&] {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string id, name, state;
    return !(stat >> id >> name >> state) || state == "Z" || state == "X";
  };
  for (int tenth = 0; tenth < 100 && !gone(); ++tenth) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(gone()) << "process " << pid << " is still there\n" << result.output;
}

// What hwloc says of a machine without /sys is not ours.
std::string without_hwloc(const std::string& output) {
  std::istringstream lines(output);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("[hwloc/", 0) != 0) kept += line + "\n";
  }
  return kept;
}

TEST(RunMpi, EndsWell) {
  for (const int ranks : {1, 4}) {
    const Outcome result = run("well", ranks);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(without_hwloc(result.output), "");
  }
}

TEST(RunMpi, WaitsForARankThatIsBusyAtTheEnd) {
  const Outcome result = run("late");
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(RunMpi, ErrorOfAllRanksIsPrintedOnce) {
  const Outcome result = run("all_fail");
  expect_one_error(result, "ulysses_shards=3 does not divide 4");
  expect_clean_end(result);
}

TEST(RunMpi, ErrorOfOneRankEndsAll) {
  for (const auto& [scenario, error] : {std::pair("one_fails", "shard 2 is missing"),
                                        {"rank_0_fails", "the output is not writable"},
                                        {"one_fails_at_the_end", "too late"},
                                        {"no_std_exception", "an exception that is not a std::exception"},
                                        {"fails_amid_transfers", "given up"}}) {
    SCOPED_TRACE(scenario);
    const Outcome result = run(scenario);
    expect_one_error(result, error);
    expect_clean_end(result);
  }
}

TEST(RunMpi, OfSeveralErrorsTheFirstIsPrinted) { expect_one_error(run("all_fail_differently"), "rank "); }

TEST(RunMpi, MismatchedSizesNameBothRanks) {
  expect_one_error(run("sizes_differ"), "rank 0 sends 5 bytes where rank 1 expects 7 bytes in 'unpack'");
  expect_one_error(run("more_than_expected"), "rank 0 sends more bytes where rank 1 expects 7 bytes in 'unpack'");
}

// The table of who waits for whom, one line per rank.
void expect_table(const Outcome& result, int ranks) {
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_EQ(count("\n" + result.output, "\n  rank " + std::to_string(rank) + " on "), 1) << rank << "\n"
                                                                                           << result.output;
}

// The neighbour that waits for the missing rank, or the next one round the ring, notices first. Whoever it is names the
// rank that all wait for.
TEST(RunMpi, StoppedProcessIsNamedAndKilled) {
  for (const auto& [scenario, rank] : {std::pair("process_stops", "1"), {"process_0_stops", "0"}}) {
    SCOPED_TRACE(scenario);
    const Outcome result = run(scenario);
    expect_one_error(result, "rank ");
    EXPECT_NE(result.output.find(" waited 2 s for rank "), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("in 'ring hop' at step 3: its 1 bytes did not arrive"), std::string::npos)
        << result.output;
    const std::regex verdict(std::string("; rank ") + rank + " on [^ ]+ is dead: no sign of life for [0-9.]+ s\n");
    EXPECT_TRUE(std::regex_search(result.output, verdict)) << result.output;
    expect_table(result, 4);
    expect_stopped_process_is_gone(result);
  }
}

// mpirun ends the other ranks where one is killed, unless it is told not to; then it is theirs to notice. Its exit code
// is 0 then, whatever theirs are.
TEST(RunMpi, KilledProcessIsNamed) {
  const Outcome result = run("process_is_killed", 4, "--enable-recovery");
  EXPECT_NE(result.exit_code, 124) << "hangs\n" << result.output;
  EXPECT_EQ(count(result.output, "zoetrope: "), 1) << result.output;
  EXPECT_TRUE(
      std::regex_search(result.output, std::regex("zoetrope: rank 2 on [^ ]+ is dead: its process has ended\n")))
      << result.output;
  expect_table(result, 4);
}

TEST(RunMpi, SlowRankIsNamedAsSlow) {
  const Outcome result = run("rank_is_slow");
  expect_one_error(result, "rank ");
  EXPECT_TRUE(
      std::regex_search(result.output, std::regex("; rank 1 on [^ ]+ is slow: it last entered 'barrier' at step ")))
      << result.output;
  expect_table(result, 4);
}

TEST(RunMpi, SlowRankIsWaitedForWhereWaitsExtend) {
  const Outcome result = run("rank_is_slow_and_waited_for");
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(RunMpi, TheTimeInWhichAProcessIsStoppedDoesNotCount) {
  const Outcome result = run("waiting_process_pauses", 2);
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(RunMpi, StoppedProcessIsNamedExactlyWhereOneRankWaits) {
  const Outcome result = run("process_stops", 2);
  expect_one_error(result, "rank 0 waited 2 s for rank 1 in 'ring hop' at step 3: its 1 bytes did not arrive");
  expect_stopped_process_is_gone(result);
}

TEST(RunMpi, ProcessThatStopsAtTheEndIsNoticed) {
  const Outcome result = run("process_stops_at_the_end");
  expect_one_error(result, "rank 0 waited 2 s for rank 1 in 'end of the run': it does not answer");
  expect_stopped_process_is_gone(result);
}

TEST(RunMpi, StalledThreadIsNamedAndEndsTheRun) {
  // Another thread of its process does not stall, and no sign of it is taken for one of the rank.
  for (const char* scenario : {"thread_stalls", "thread_stalls_and_is_watched"}) {
    SCOPED_TRACE(scenario);
    const Outcome result = run(scenario);
    expect_one_error(result, "rank ");
    const std::regex verdict("; rank 1 on [^ ]+ is stalled: it last entered 'barrier' at step 3");
    EXPECT_TRUE(std::regex_search(result.output, verdict)) << result.output;
    expect_table(result, 4);
  }
}

// Between the end of its body and MPI_Finalize.
TEST(RunMpi, ThreadThatStopsBehindItsBodyEndsTheRun) {
  constexpr const char* kSays = " s at the end of the run for ranks that are stopped or gone";
  expect_one_error(run("thread_stops_behind_its_body", 3), std::string("rank 0 waited 10") + kSays);
  expect_one_error(run("thread_0_stops_behind_its_body", 3), std::string("rank 1 waited 14") + kSays);
  expect_one_error(run("thread_stops_behind_its_body_and_one_fails", 3), "the output is not writable");
}

// mpirun itself may crash or hang when a process goes while others are in MPI_Finalize; the sentence is there first.
TEST(RunMpi, ProcessThatStopsInFinaliseIsNotWaitedFor) {
  for (const auto& [scenario, waits] : {std::pair("process_stops_in_finalise", "rank 0 waited 10 s"),
                                        {"process_0_stops_in_finalise", "rank 1 waited 14 s"}}) {
    SCOPED_TRACE(scenario);
    const Outcome result = run(scenario, 3);
    EXPECT_NE(result.exit_code, 0) << result.output;
    EXPECT_EQ(count(result.output, "zoetrope: "), 1) << result.output;
    EXPECT_EQ(count(result.output, std::string("zoetrope: ") + waits + " at the end of the run"), 1) << result.output;
  }
}

TEST(RunMpi, RanksThatFinishApartWaitForEachOther) {
  const Outcome result = run("finish_apart", 2);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(without_hwloc(result.output), "");
}

TEST(RunMpi, FailureOutsideOfARunEndsAlsoALentMpi) {
  const Outcome result = run("fails_in_a_lent_mpi", 2);
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_NE(result.exit_code, 124) << "hangs\n" << result.output;
}

TEST(RunMpi, RankThatLeavesEndsTheRun) { EXPECT_NE(run("leaves_without_mpi").exit_code, 0); }

}  // namespace
