#include "pipeline/ranks/host_links.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "comm/testing.h"

namespace zoetrope::pipeline {
namespace {

// Hosts of unlike numbers of ranks, in any order: those that all have take part, and every rank learns the same.
TEST(HostLinks, EveryRankLearnsTheSame) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "b"}, {"a", "a", "b", "b"}, {"a", "b", "c", "a", "b"}, {"a", "b", "b", "b"}}) {
    std::mutex mutex;
    std::vector<HostLinks> found;
    comm::run_ranks(static_cast<int>(hosts.size()), [&](comm::Communicator& world) {
      const std::optional<HostLinks> links = measure_host_links(world, hosts);
      ASSERT_TRUE(links);
      const std::lock_guard lock(mutex);
      found.push_back(*links);
    });
    ASSERT_EQ(found.size(), hosts.size());
    for (const HostLinks& links : found) {
      EXPECT_EQ(links.bandwidth, found[0].bandwidth);
      EXPECT_EQ(links.latency, found[0].latency);
      EXPECT_GT(links.bandwidth, 0);
      EXPECT_GT(links.latency, 0);
    }
  }
}

// On a clock of its own, which only messages move: by a millisecond and 10 ns a byte.
class TimedCommunicator final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    if (std::string_view(operation) == kMeasuringLinks) seconds_ += 1e-3 + 1e-8 * static_cast<double>(sends[0].bytes);
    return inner().exchange(sends, receives, operation);
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner().split(color, key); }
  double seconds() const { return seconds_; }

 private:
  double seconds_ = 0;
};

TEST(HostLinks, AreThoseOfTheMessages) {
  comm::run_ranks(5, [](comm::Communicator& world) {
    TimedCommunicator timed(world);
    const auto links = measure_host_links(timed, {"a", "a", "b", "b", "b"}, [&] { return timed.seconds(); });
    ASSERT_TRUE(links);
    EXPECT_NEAR(links->latency, 1e-3, 1e-6);      // and 64 bytes
    EXPECT_NEAR(links->bandwidth, 2 * 1e8, 1e4);  // of two ranks of a host together; latency has 64 bytes
  });
}

TEST(HostLinks, OneHostHasNone) {
  comm::run_ranks(3, [](comm::Communicator& world) { EXPECT_FALSE(measure_host_links(world, {"a", "a", "a"})); });
}

}  // namespace
}  // namespace zoetrope::pipeline
