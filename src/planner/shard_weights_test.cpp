// Shard weights for machines of made-up speeds, against what a step of such ranks can take at best.
#include "planner/shard_weights.h"

#include <gtest/gtest.h>

namespace zoetrope::planner {
namespace {

// A switch that nobody waits for.
HardwareProfile machine(const std::vector<double>& speeds) {
  HardwareProfile made;
  made.devices = static_cast<int>(speeds.size());
  made.bf16.peak = 1e12;
  made.bf16.gemm = Curve(1.0);
  made.bf16.attention = Curve(0.5);
  made.memory_bandwidth = 1e12;
  LinkLevel level;
  level.name = "wires";
  level.members = made.devices;
  level.bandwidth = 1e18;
  made.links = {level};
  made.speeds = speeds;
  return made;
}

Work work_of(int branches = 1) {
  Work work;
  work.layers = 3;
  work.tokens = 9600;
  work.heads = 12;
  work.head_dim = 64;
  work.width = work.heads * work.head_dim;
  work.linear_flop = 3e11;
  work.cross_flop = 1e11;
  work.ends_flop = 1e10;
  work.branches = branches;
  return work;
}

Configuration configuration(const parallel::ContextLayout& context, int data = 1) {
  Configuration made;
  made.layout.data = data;
  made.layout.context = context;
  return made;
}

struct Found {
  std::vector<int> weights;
  double seconds, even;
};
Found fastest(const std::vector<double>& speeds, const parallel::ContextLayout& context, int data = 1) {
  const HardwareProfile hardware = machine(speeds);
  const Configuration made = configuration(context, data);
  const Work work = work_of(data);
  const std::vector<int> weights = fastest_shard_weights(work, hardware, made);
  return {weights, simulate_shards(work, hardware, made, weights).seconds,
          simulate_shards(work, hardware, made, {}).seconds};
}

using Weights = std::vector<int>;
const double kAlone = simulate_step(work_of(), machine({1}), configuration({})).seconds;

TEST(ShardWeights, EqualRanksHaveEvenShards) {
  for (const parallel::ContextLayout& context :
       {parallel::ContextLayout{.ring = 4}, {.ulysses = 4}, {.ulysses = 2, .ring = 2}, {.gather = 4}}) {
    EXPECT_EQ(fastest({1, 1, 1, 1}, context).weights, Weights());
    EXPECT_EQ(fastest({0.3, 0.3, 0.3, 0.3}, context).weights, Weights());
    EXPECT_EQ(fastest({1, 1, 0.995, 1}, context).weights, Weights());
  }
}

// Two ranks with speeds 1 and 0.5 can take a step in 1 / 1.5 of what the fast one takes alone; with even shards they
// take half of what the slow one does.
TEST(ShardWeights, OfTwoRanksFollowTheirSpeeds) {
  for (const parallel::ContextLayout& context : {parallel::ContextLayout{.ring = 2}, {.ulysses = 2}, {.gather = 2}}) {
    const Found found = fastest({1, 0.5}, context);
    EXPECT_EQ(found.weights, (Weights{2, 1}));
    EXPECT_NEAR(found.seconds, kAlone / 1.5, 1e-6 * kAlone);
    EXPECT_NEAR(found.even, kAlone, 1e-6 * kAlone);
  }
}

TEST(ShardWeights, OfManyRanksComeCloseToTheIdeal) {
  const std::vector<double> speeds{1, 0.8, 0.6, 1, 0.4, 1};
  const double ideal = kAlone / 4.8;
  EXPECT_LE(fastest(speeds, {.ring = 6}).seconds, 1.02 * ideal);
  // Of twelve heads each rank has whole ones.
  EXPECT_LE(fastest(speeds, {.ulysses = 6}).seconds, 1.25 * ideal);
}

// In two dimensions a slow rank slows its group and its column: weights help less, and never do harm.
TEST(ShardWeights, OfTwoDimensionsAreNoWorseThanEven) {
  const Found one = fastest({1, 1, 1, 0.5}, {.ulysses = 2, .ring = 2});
  EXPECT_LT(one.seconds, 0.8 * one.even);
  // All of a column, or of a group: as good as in one dimension.
  EXPECT_EQ(fastest({1, 0.5, 1, 0.5}, {.ulysses = 2, .ring = 2}).weights, (Weights{2, 1, 2, 1}));
  EXPECT_EQ(fastest({1, 1, 0.5, 0.5}, {.ulysses = 2, .ring = 2}).weights, (Weights{2, 2, 1, 1}));
}

// The parts of the data have one division: that of the slower part.
TEST(ShardWeights, AreThoseOfTheSlowestOfADataAxis) {
  EXPECT_EQ(fastest({1, 1, 1, 0.5}, {.ring = 2}, 2).weights, (Weights{2, 1}));
}

TEST(ShardWeights, WholeSequencesHaveNone) {
  Configuration made = configuration({.ring = 2});
  made.layout.sharded = false;
  EXPECT_EQ(fastest_shard_weights(work_of(), machine({1, 0.5}), made), Weights());
}

}  // namespace
}  // namespace zoetrope::planner
