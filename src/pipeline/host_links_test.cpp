#include "pipeline/host_links.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

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
      EXPECT_GT(links.bandwidth, 1e6);
      EXPECT_GT(links.latency, 0);
    }
  }
}

// Messages take a millisecond and 10 ns a byte, at least.
class SlowCommunicator final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    if (std::string_view(operation) == "measuring the links between hosts")
      std::this_thread::sleep_for(std::chrono::nanoseconds(1'000'000 + 10 * sends[0].bytes));
    return inner().exchange(sends, receives, operation);
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner().split(color, key); }
};

TEST(HostLinks, NoneIsFasterThanItsMessages) {
  comm::run_ranks(4, [](comm::Communicator& world) {
    SlowCommunicator slow(world);
    const std::optional<HostLinks> links = measure_host_links(slow, {"a", "a", "b", "b"});
    ASSERT_TRUE(links);
    EXPECT_GE(links->latency, 1e-3);
    // Of both ranks of a host together. A part of the latency may count as moving: less of 50 ms than a tenth.
    EXPECT_LE(links->bandwidth, 2 * 1e8 * 1.1);
  });
}

TEST(HostLinks, OneHostHasNone) {
  comm::run_ranks(3, [](comm::Communicator& world) { EXPECT_FALSE(measure_host_links(world, {"a", "a", "a"})); });
}

}  // namespace
}  // namespace zoetrope::pipeline
