// Shard weights on made-up machines: ranks whose speeds differ, change, are disturbed, or seem to differ.
#include "pipeline/ranks/shard_balance.h"

#include <gtest/gtest.h>

#include "planner/shard_weights.h"

namespace zoetrope::pipeline {
namespace {

using Weights = std::vector<int>;
using RankStep = ShardBalance::RankStep;

planner::HardwareProfile machine(int ranks) {
  planner::HardwareProfile made;
  made.devices = ranks;
  made.bf16.peak = 1e12;
  made.bf16.gemm = planner::Curve(1.0);
  made.bf16.attention = planner::Curve(0.5);
  made.memory_bandwidth = 1e12;
  planner::LinkLevel level;
  level.name = "wires";
  level.members = ranks;
  level.bandwidth = 1e18;
  made.links = {level};
  return made;
}

ShardPricing pricing_of(int ranks) {
  ShardPricing pricing;
  pricing.work.layers = 3;
  pricing.work.tokens = 9600;
  pricing.work.heads = 12;
  pricing.work.head_dim = 64;
  pricing.work.width = pricing.work.heads * pricing.work.head_dim;
  pricing.work.linear_flop = 4e11;
  pricing.hardware = std::make_shared<planner::HardwareProfile>(machine(ranks));
  pricing.configuration.layout.context.ring = ranks;
  return pricing;
}

// A run of ranks with these speeds.
class Ranks {
 public:
  explicit Ranks(std::vector<double> of, ShardPricing pricing = {})
      : speeds(std::move(of)),
        pricing_(pricing.hardware ? std::move(pricing) : pricing_of(static_cast<int>(speeds.size()))),
        balance_(pricing_) {}

  // Of a step with the present weights: it is as long as its slowest rank computes.
  std::vector<RankStep> measured() const {
    const planner::StepPrediction step =
        planner::simulate_shards(pricing_.work, *pricing_.hardware, pricing_.configuration, weights);
    std::vector<RankStep> ranks(speeds.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank].computed = planner::compute_seconds(step.ranks[rank]) / speeds[rank];
    wait_for_the_slowest(ranks);
    return ranks;
  }
  static void wait_for_the_slowest(std::vector<RankStep>& ranks) {
    double longest = 0;
    for (const RankStep& rank : ranks) longest = std::max(longest, rank.computed);
    for (RankStep& rank : ranks) rank.waited = longest - rank.computed;
  }
  void step(const std::vector<RankStep>& ranks) {
    ++steps;
    const std::optional<Weights> wanted = balance_.after_step(ranks);
    if (!wanted) return;
    weights = *wanted;
    changes.emplace_back(steps, weights);
  }
  void steps_until(int last) {
    while (steps < last) step(measured());
  }

  std::vector<double> speeds;
  Weights weights;  // now
  int steps = 0;
  std::vector<std::pair<int, Weights>> changes;  // after which step, to what

 private:
  ShardPricing pricing_;
  ShardBalance balance_;
};

using Changes = std::vector<std::pair<int, Weights>>;

TEST(ShardBalance, EqualRanksStayEven) {
  Ranks ranks({1.3, 1.3, 1.3});
  ranks.steps_until(40);
  EXPECT_EQ(ranks.changes, Changes());
  // Nor where they differ by what noise is.
  Ranks noisy({1, 1, 1});
  for (int i = 0; i < 40; ++i) {
    noisy.speeds = {1 + 0.02 * (i % 3), 1 + 0.02 * ((i + 1) % 3), 1 + 0.02 * ((i + 2) % 3)};
    noisy.step(noisy.measured());
  }
  EXPECT_EQ(noisy.changes, Changes());
}

// The first step is left out, and a decision looks at two.
TEST(ShardBalance, UnequalRanksHaveSharesAsTheirSpeeds) {
  Ranks ranks({1, 0.5});
  ranks.steps_until(50);
  EXPECT_EQ(ranks.changes, (Changes{{3, {2, 1}}}));
}

TEST(ShardBalance, OneDisturbedStepChangesNothing) {
  Ranks ranks({1, 1});
  for (int i = 0; i < 40; ++i) {
    ranks.speeds = {i % 5 == 3 ? 0.3 : 1, 1};
    ranks.step(ranks.measured());
  }
  EXPECT_EQ(ranks.changes, Changes());
}

TEST(ShardBalance, FollowsRanksThatChange) {
  Ranks ranks({1, 0.5});
  ranks.steps_until(10);
  EXPECT_EQ(ranks.weights, (Weights{2, 1}));
  // The other one is slow: at once.
  ranks.speeds = {0.5, 1};
  ranks.steps_until(12);
  EXPECT_EQ(ranks.weights, (Weights{1, 2}));
  // Both are fast: even steps were slower once, so that they are tried after a while.
  ranks.speeds = {1, 1};
  ranks.steps_until(40);
  EXPECT_EQ(ranks.weights, Weights());
}

// With a quota of half a core a rank computes at full speed where it waits half of the time, and seems as fast as the
// other. Even shards are slower all the same: they are tried after 16 steps, after 32 more, and given up at once.
TEST(ShardBalance, AQuotaDoesNotMakeItGoBackAndForth) {
  Ranks ranks({1, 1});
  for (int i = 0; i < 60; ++i) {
    std::vector<RankStep> measured = ranks.measured();
    // The step may take no less than twice what this rank computes in it.
    if (measured[1].computed > measured[0].computed / 2) measured[1].computed *= 2;
    Ranks::wait_for_the_slowest(measured);
    ranks.step(measured);
  }
  EXPECT_EQ(ranks.changes, (Changes{{3, {2, 1}}, {19, {}}, {20, {2, 1}}, {52, {}}, {53, {2, 1}}}));
}

// A change that makes steps no shorter is taken back, and not tried again for a while.
TEST(ShardBalance, ATrialThatDoesNotHelpEnds) {
  Ranks ranks({1, 1});
  for (int i = 0; i < 18; ++i) ranks.step({{1, 1}, {2, 0}});  // whatever the weights
  EXPECT_EQ(ranks.changes, (Changes{{3, {2, 1}}, {6, {}}}));
}

TEST(ShardBalance, KeepsToTheMemoryThereIs) {
  ShardPricing pricing = pricing_of(2);
  pricing.fits = [](const Weights& weights) { return weights.empty(); };
  Ranks ranks({1, 0.5}, pricing);
  ranks.steps_until(20);
  EXPECT_EQ(ranks.changes, Changes());
}

}  // namespace
}  // namespace zoetrope::pipeline
