// GoogleTest bodies that run on ranks: one text, registered once for every number of threads, and once more, with the
// same text, in a process that mpirun started. For tests only.
//
//   ZT_RANK_TEST(Ring, PassesBlocksOn) { /* `comm` is this rank's communicator */ EXPECT_EQ(…); }
//
// gives Ring.PassesBlocksOn_threads1, …2, …3, …4, …6, …7, and under `mpirun -n 4` Ring.PassesBlocksOn_mpi4.
// EXPECT_… may be used on every rank; ASSERT_… leaves the body of its rank only, and the others then run into the
// deadline, so use it where all ranks fail alike.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::comm {

using RankBody = std::function<void(Communicator&)>;

// The numbers of ranks that tests run on.
inline const std::vector<int> kTestRanks = {1, 2, 3, 4, 6, 7};

// For tests with parameters of their own (topologies, shapes): call it from a static initialiser, once a case.
int register_rank_test(const char* suite, const std::string& name, const std::vector<int>& ranks, const char* file,
                       int line, const RankBody& body, const RankOptions& options = {.timeout_seconds = 60});

#define ZT_RANK_TEST(Suite, Name)                                                                       \
  static void Suite##_##Name(::zoetrope::comm::Communicator& comm);                                     \
  [[maybe_unused]] static const int Suite##_##Name##_registered = ::zoetrope::comm::register_rank_test( \
      #Suite, #Name, ::zoetrope::comm::kTestRanks, __FILE__, __LINE__, &Suite##_##Name);                \
  static void Suite##_##Name([[maybe_unused]] ::zoetrope::comm::Communicator& comm)

}  // namespace zoetrope::comm
