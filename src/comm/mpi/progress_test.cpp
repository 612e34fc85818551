// Under MPI transfers proceed while the rank computes: without any call of this library.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "zoetrope/mpi.h"

#include "comm/payload.h"
#include "comm/rank_test.h"
#include "trace/trace.h"

namespace zoetrope::comm {
namespace {

trace::Trace& recorded() {
  static trace::Trace trace;
  return trace;
}

// The trace gets its entry when the transfer has ended. No rank waits for its work before it has seen that, so only the
// progress threads can have moved the data: 8 MB, far more than MPI sends without its receiver's help.
void transfers_end_without_wait(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  const int from = (me + n - 1) % n;
  std::vector<char> out = make_payload({me, 0, 0}, size_t{8} << 20);
  std::vector<char> in(out.size());
  const Segment send{(me + 1) % n, out.data(), out.size()};
  const Segment receive{from, in.data(), in.size()};
  Work work = comm.exchange({&send, 1}, {&receive, 1}, "ring hop");
  for (int tenth = 0; tenth < 300 && recorded().size() == 0; ++tenth)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(recorded().size(), 1u) << "the transfer did not end within 30 s";
  work.wait();
  EXPECT_EQ(recorded().size(), 2u);  // and the wait
  EXPECT_TRUE(is_payload(in, {from, 0, 0}));
}

[[maybe_unused]] const int kRegistered =
    launched_by_mpi() ? register_rank_test("Progress", "TransfersEndWithoutWait", {2, 3, 4}, __FILE__, __LINE__,
                                           &transfers_end_without_wait, {.timeout_seconds = 60, .trace = &recorded()})
                      : 0;

}  // namespace
}  // namespace zoetrope::comm
