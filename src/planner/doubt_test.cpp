// Assumptions that decide and assumptions that do not.
#include "planner/doubt.h"

#include <gtest/gtest.h>

namespace zoetrope::planner {
namespace {

using parallel::ParallelLayout;

// Two devices of 100 TFLOP/s on a switch without latency.
Question question() {
  Question q;
  HardwareProfile& hardware = q.hardware;
  hardware.name = "test";
  hardware.devices = hardware.devices_per_host = 2;
  hardware.device_memory = Bytes(int64_t{80} << 30);
  for (ComputeFigures* figures : {&hardware.bf16, &hardware.float32}) {
    figures->peak = 1e14;
    figures->gemm = Curve(0.5);
    figures->attention = Curve(0.5);
  }
  hardware.memory_bandwidth = 1e12;
  hardware.host_read = 1e9;
  hardware.layer_overhead = 1e-3;
  hardware.model_error = 0.05;
  LinkLevel link;
  link.name = "node";
  link.members = 2;
  link.bandwidth = 1e12;
  hardware.links = {link};
  q.ranks = 2;
  q.work.layers = 4;
  q.work.tokens = 8192;
  q.work.heads = 8;
  q.work.head_dim = 128;
  q.work.width = 1024;
  q.work.linear_flop = 2.0 * 8192 * 1024 * 1024 * 14;
  q.work.branches = 2;
  q.work.steps = 10;
  q.work.latent_bytes = 1 << 20;
  q.memory = [](const ParallelLayout& layout, int ranks_here) {
    Workload w;
    w.layout = layout;
    w.ranks_here = ranks_here;
    w.experts.resize(1);
    w.attention = {1, 8192, 8, 128, 2};
    return w;
  };
  return q;
}

TEST(Doubts, AnAssumptionThatDecidesIsNamedWithWhatItDecides) {
  Question q = question();
  q.hardware.bf16.fixed_max_gain = 1;
  q.hardware.assumed = {{"host_read", "x0.5", "x2"}, {"bf16.fixed_max_gain", "1", "1.5"}};
  const Ranking ranking = search(q);
  ASSERT_EQ(ranking.best()->configuration.softmax, parallel::Softmax::kOnline);
  const std::vector<Doubt> found = doubts(q, ranking).best;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].figure, "bf16.fixed_max_gain");
  EXPECT_EQ(found[0].assumed, "1");
  EXPECT_EQ(found[0].instead, "1.5");
  EXPECT_EQ(found[0].best.softmax, parallel::Softmax::kFixedMax);
  // What the other gains is what this one is behind.
  Question changed = q;
  set_figure(changed.hardware, "bf16.fixed_max_gain", "1.5");
  const RunPrediction stays = simulate_run(q.work, changed.hardware, ranking.best()->configuration);
  EXPECT_NEAR(found[0].ahead, (stays.total() - stays.load) / search(changed).best()->value - 1, 1e-9);
}

// A ring's hop goes on during compute, and every message of an exchange waits: how late they are decides between them.
TEST(Doubts, TheEndWithTheMostAtStakeIsFirst) {
  Question q = question();
  q.work.branches = 1;
  q.hardware.merge_passes = 1;
  q.hardware.assumed = {{"links.node.latency", "1", "100"}, {"bf16.fixed_max_gain", "1.1", "2"}};
  const Ranking ranking = search(q);
  ASSERT_EQ(ranking.best()->configuration.layout.context.ulysses, 2);
  const std::vector<Doubt> found = doubts(q, ranking).best;
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].figure, "bf16.fixed_max_gain");
  EXPECT_EQ(found[0].instead, "2");
  EXPECT_EQ(found[1].figure, "links.node.latency");
  EXPECT_EQ(found[1].assumed, "0 microseconds");
  EXPECT_EQ(found[1].instead, "100 microseconds");
  EXPECT_EQ(found[1].best.layout.context.ring, 2);
  EXPECT_GT(found[0].ahead, found[1].ahead);
  EXPECT_GT(found[1].ahead, kNoDifference);
}

// The fixed part of a layer is paid for every branch: together on both ranks it is paid twice, apart once.
TEST(Doubts, WhatTurnsATieIntoWhatIsSlowerIsNamed) {
  Question q = question();
  const Ranking without = search(q);
  const double step = without.best()->time.step.seconds;
  q.hardware.layer_overhead = 0.1 * step / static_cast<double>(q.work.layers);
  q.hardware.assumed = {{"layer_overhead", "0", "x1"}};
  const Ranking ranking = search(q);
  const Doubts found = doubts(q, ranking);
  EXPECT_TRUE(found.best.empty());
  ASSERT_EQ(found.verdicts.size(), ranking.candidates.size());
  int together = 0;
  for (size_t i = 0; i < found.verdicts.size(); ++i) {
    const Candidate& c = ranking.candidates[i];
    EXPECT_TRUE(c.configuration.layout.data != 2 || found.verdicts[i].empty()) << found.verdicts[i];
    if (c.configuration.layout.data == 2 || !c.simulated) continue;
    EXPECT_EQ(c.verdict, Verdict::kSlower) << c.reason;
    EXPECT_EQ(found.verdicts[i], "a tie with layer_overhead at 0 microseconds");
    ++together;
  }
  EXPECT_GT(together, 0);
}

// Half of the peak times 1.6, and with the upper end more than the peak.
TEST(Doubts, AnEndThatIsImpossibleDecidesNothing) {
  Question q = question();
  q.hardware.bf16.fixed_max_gain = 1.6;
  q.hardware.assumed = {{"bf16.attention", "x1", "x1.5"}};
  EXPECT_TRUE(doubts(q, search(q)).best.empty());
}

TEST(Doubts, ThereAreNoneWhereNothingIsAssumedOrNothingFits) {
  Question q = question();
  EXPECT_TRUE(doubts(q, search(q)).best.empty());
  q.hardware.assumed = {{"bf16.fixed_max_gain", "1", "1.5"}, {"links.gone.bandwidth", "1", "2"}};
  EXPECT_EQ(doubts(q, search(q)).best.size(), 1U);
  set_figure(q.hardware, "bf16.fixed_max_gain", "1");  // said, and no longer assumed
  EXPECT_TRUE(doubts(q, search(q)).best.empty());
  q.hardware.assumed = {{"bf16.fixed_max_gain", "1", "1.5"}};
  q.memory_limit = Bytes(1);
  EXPECT_TRUE(doubts(q, search(q)).best.empty());
}

}  // namespace
}  // namespace zoetrope::planner
