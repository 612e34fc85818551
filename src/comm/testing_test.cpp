// The communicators that misbehave do so as told, and in nothing else.
#include "comm/testing.h"

#include <gtest/gtest.h>

#include <thread>

#include "zoetrope/error.h"

#include "comm/payload.h"
#include "comm/rank_test.h"

namespace zoetrope::comm {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

struct Hop {
  explicit Hop(Communicator& comm, const char* operation, size_t bytes = 1000)
      : out(make_payload({comm.rank(), 0, 0}, bytes)),
        in(bytes),
        from((comm.rank() + comm.size() - 1) % comm.size()),
        work(post(comm, operation)) {}
  Work post(Communicator& comm, const char* operation) {
    const Segment send{(comm.rank() + 1) % comm.size(), out.data(), out.size()};
    const Segment receive{from, in.data(), in.size()};
    return comm.exchange({&send, 1}, {&receive, 1}, operation);
  }
  testing::AssertionResult arrived() const { return is_payload(in, {from, 0, 0}); }

  std::vector<char> out;
  std::vector<char> in;
  int from;
  Work work;
};

ZT_RANK_TEST(Delayed, NamedMessagesEndNoEarlierThanTheirDelay) {
  DelayedCommunicator delayed(comm, "ring hop", Seconds(0.05));
  const std::unique_ptr<Communicator> part = delayed.split(0, comm.rank());
  const Clock::time_point begin = Clock::now();
  Hop first(*part, "ring hop");
  Hop second(*part, "ring hop");
  Hop other(delayed, "something else");
  first.work.wait();
  second.work.wait();
  other.work.wait();
  const Seconds passed = Clock::now() - begin;
  EXPECT_TRUE(first.arrived());
  EXPECT_TRUE(second.arrived());
  EXPECT_TRUE(other.arrived());
  if (comm.size() == 1) {
    EXPECT_EQ(delayed.injected_seconds(), 0);  // nothing comes from another rank
    return;
  }
  EXPECT_DOUBLE_EQ(delayed.injected_seconds(), 0.1);
  EXPECT_GE(passed.count(), 0.05);  // side by side: one delay, not two
  EXPECT_LE(part->counters().wait_seconds, passed.count());
  ASSERT_EQ(delayed.waits().size(), 2U);
  EXPECT_LE(delayed.waits()[0] + delayed.waits()[1], passed.count());
}

// What the overlap tests of other modules rely on: a delay that passes under computation is not waited for.
ZT_RANK_TEST(Delayed, DelayPassesWhileTheRankComputes) {
  DelayedCommunicator delayed(comm, "ring hop", Seconds(0.05));
  Hop hop(delayed, "ring hop");
  std::this_thread::sleep_for(Seconds(0.06));
  comm.reset_counters();
  hop.work.wait();
  EXPECT_TRUE(hop.arrived());
  EXPECT_EQ(delayed.counters().wait_seconds, comm.counters().wait_seconds);  // none of it is the delay
}

ZT_RANK_TEST(Late, MessagesThatAreDelayedAreWaitedForInFull) {
  DelayedCommunicator delayed(comm, "ring hop", Seconds(0.05));
  LateCommunicator late(delayed, "ring hop");
  const std::unique_ptr<Communicator> part = late.split(0, comm.rank());
  Hop hop(*part, "ring hop"), other(*part, "something else");
  std::this_thread::sleep_for(Seconds(0.06));
  hop.work.wait();
  other.work.wait();
  EXPECT_TRUE(hop.arrived());
  EXPECT_TRUE(other.arrived());
  if (comm.size() == 1) return;
  ASSERT_EQ(late.waits().size(), 1U);
  EXPECT_GE(late.waits()[0], 0.05);
}

ZT_RANK_TEST(Faulty, FlipsOneByteOfTheChosenPiece) {
  FaultyCommunicator faulty(comm, "ring hop", 2);
  const std::unique_ptr<Communicator> part = faulty.split(0, comm.rank());
  for (int hop = 0; hop < 4; ++hop) {
    Hop ring(*part, "ring hop");
    ring.work.wait();
    Hop other(*part, "something else");
    other.work.wait();
    EXPECT_TRUE(other.arrived());
    const bool wrong = hop == 2 && comm.size() > 1;
    EXPECT_EQ(ring.arrived(), !wrong);
    if (wrong) {
      ring.in[FaultyCommunicator::flipped_byte(ring.in.size())] ^= 0xff;
      EXPECT_TRUE(ring.arrived());
    }
  }
  EXPECT_EQ(faulty.flipped(), comm.size() > 1);
}

// A flipped byte is seen in pieces that are copied in chunks and past the caches too; wherever it is, since each word
// says its place.
ZT_RANK_TEST(Faulty, IsNoticedInLargePieces) {
  FaultyCommunicator faulty(comm, "ring hop", 0);
  Hop ring(faulty, "ring hop", (size_t{5} << 20) + 13);
  ring.work.wait();
  EXPECT_EQ(ring.arrived(), comm.size() == 1);
  if (comm.size() == 1) return;
  ring.in[FaultyCommunicator::flipped_byte(ring.in.size())] ^= 0xff;
  EXPECT_TRUE(ring.arrived());
}

TEST(Stalled, PeersRunIntoTheirDeadline) {
  try {
    run_ranks(3,
              [](Communicator& comm) {
                StalledCommunicator stalled(comm, "ring hop", 1);
                const std::unique_ptr<Communicator> part = stalled.split(0, comm.rank());
                part->barrier();
                Hop(*part, "ring hop").work.wait();
              },
              {.timeout_seconds = 1});
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("waited 1 s for rank 1 in 'ring hop'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zoetrope::comm
