// Weights that arrive as they are used: against bytes over bandwidth, and against what compute hides.
#include "planner/weight_wait.h"

#include <gmock/gmock.h>

#include <cmath>

namespace zoetrope::planner {
namespace {

constexpr double kPeak = 1e12, kBandwidth = 1e9, kRead = 2e9;

// A switch without latency; matrix multiplications at the peak, nothing else takes time but attention.
HardwareProfile machine(int devices) {
  HardwareProfile made;
  made.name = "made up";
  made.devices = made.devices_per_host = devices;
  made.bf16.peak = made.float32.peak = kPeak;
  made.bf16.gemm = made.float32.gemm = Curve(1.0);
  made.bf16.attention = made.float32.attention = Curve(1.0);
  made.memory_bandwidth = 1e12;
  made.host_read = kRead;
  made.chunk_overlap = 1;
  LinkLevel level;
  level.name = "wires";
  level.members = devices;
  level.bandwidth = kBandwidth;
  made.links = {level};
  return made;
}

Work work_of(int branches = 1) {
  Work made;
  made.layers = 4;
  made.tokens = 64;
  made.heads = 4;
  made.head_dim = 16;
  made.width = 64;
  made.linear_flop = 1e9;
  made.branches = branches;
  made.steps = 1;
  made.weights.layer = Bytes(10'000'000);
  return made;
}

Configuration layout(int data, int ring, int shards = 1) {
  Configuration made;
  made.layout.data = data;
  made.layout.context = {1, ring};
  made.layout.weight_shards = shards;
  return made;
}

StepPrediction step_of(const Work& work, const HardwareProfile& hardware, const Configuration& made = layout(1, 1)) {
  StepPrediction step = simulate_step(work, hardware, made);
  for (const Breakdown& part : step.ranks) EXPECT_NEAR(part.total(), step.seconds, 1e-9 * step.seconds);
  return step;
}

// Three of four layers, 10 MB each.
Work streamed(int branches = 1) {
  Work work = work_of(branches);
  work.weights.fetched = 3;
  work.weights.read = work.weights.layer;
  return work;
}

TEST(WeightWait, IsZeroWhereAllWeightsAreInMemory) {
  EXPECT_EQ(step_of(work_of(2), machine(2), layout(1, 2)).critical().weights, 0);
  EXPECT_EQ(step_of(work_of(2), machine(2), layout(2, 1)).critical().weights, 0);
}

TEST(WeightWait, ASlowDiskTakesItsBytesOverItsBandwidth) {
  HardwareProfile hardware = machine(1);
  hardware.disk_read = 1e8;
  const StepPrediction step = step_of(streamed(), hardware);
  EXPECT_NEAR(step.seconds, 3 * 1e7 / 1e8, 1e-12);
  EXPECT_EQ(step.weights_level, "disk");
  EXPECT_THAT(step.limited_by(), testing::StartsWith("waiting for weights over 'disk'"));
}

TEST(WeightWait, AFastDiskAddsNothing) {
  HardwareProfile hardware = machine(1);
  hardware.disk_read = hardware.host_read = 1e11;
  EXPECT_DOUBLE_EQ(step_of(streamed(), hardware).seconds, step_of(work_of(), hardware).seconds);
}

TEST(WeightWait, EachProcessCopiesWhatTheDiskGivesOnce) {
  HardwareProfile hardware = machine(4);
  hardware.disk_read = kRead;
  Work work = streamed();
  work.weights.ranks_here = 1;
  const StepPrediction step = step_of(work, hardware, layout(1, 4));
  EXPECT_NEAR(step.seconds, 4 * 3 * 1e7 / kRead, 1e-12);
  EXPECT_EQ(step.weights_level, "");
}

TEST(WeightWait, WithoutAFigureOfTheDiskFilesAreReadAsTheyAreLoaded) {
  EXPECT_NEAR(step_of(streamed(), machine(1)).seconds, 3 * 1e7 / kRead, 1e-12);
}

// The cores that pack do not compute meanwhile.
TEST(WeightWait, PackingAnewIsAddedToTheCompute) {
  Work work = streamed();
  work.linear_flop = 1e12;
  work.weights.read = Bytes(10'000'000);
  work.weights.packed = Bytes(20'000'000);
  const HardwareProfile hardware = machine(1);
  const double compute = step_of(work_of(), hardware).seconds + 4 * (1e12 - 1e9) / kPeak;
  EXPECT_NEAR(step_of(work, hardware).seconds, compute + 3 * 2e7 / kRead, 1e-9);
  // Beside a slow disk it is hidden.
  HardwareProfile slow = hardware;
  slow.disk_read = 1e6;
  EXPECT_NEAR(step_of(work, slow).seconds, 3 * 1e7 / 1e6, 1e-9);
  work.weights.in_memory = true;
  EXPECT_NEAR(step_of(work, slow).seconds, compute + 3 * 2e7 / kRead, 1e-9);
}

TEST(WeightWait, EveryPassOverTheLayersReadsThem) {
  HardwareProfile hardware = machine(1);
  hardware.disk_read = 1e8;
  Work work = streamed(2);
  EXPECT_NEAR(step_of(work, hardware).seconds, 0.3, 1e-12);
  work.samples_apart = true;
  EXPECT_NEAR(step_of(work, hardware).seconds, 0.6, 1e-12);
}

// Reading once is enough for all of a host; each process packs its own copy.
TEST(WeightWait, ProcessesOfAHostShareItsDiskAndItsCores) {
  HardwareProfile hardware = machine(4);
  hardware.disk_read = 1e8;
  Work work = streamed();
  const auto waits = [&] { return step_of(work, hardware, layout(1, 4)).critical().weights; };
  const double threads = waits();
  work.weights.ranks_here = 1;
  EXPECT_DOUBLE_EQ(waits(), threads);
  work.weights.packed = work.weights.read;
  hardware.disk_read = 0;
  EXPECT_NEAR(waits(), 4 * 3 * 1e7 / kRead, 1e-12);
  work.weights.ranks_here = 2;
  EXPECT_NEAR(waits(), 2 * 3 * 1e7 / kRead, 1e-12);
  hardware.devices_per_host = 2;
  EXPECT_NEAR(waits(), 3 * 1e7 / kRead, 1e-12);
}

TEST(WeightWait, RunsBesideOneAnotherShareAHostsReading) {
  HardwareProfile hardware = machine(4);
  Work work = streamed();
  work.weights.packed = work.weights.read;
  work.weights_read = Bytes(10'000'000);
  const auto waits = [&](int ring) { return step_of(work, hardware, layout(1, ring)).critical().weights; };
  work.ranks_of_all_runs = 4;
  EXPECT_NEAR(waits(1), 4 * 3 * 1e7 / kRead, 1e-12);
  EXPECT_NEAR(waits(2), 2 * 3 * 1e7 / kRead, 1e-12);
  EXPECT_NEAR(waits(4), 3 * 1e7 / kRead, 1e-12);
  EXPECT_NEAR(simulate_run(work, hardware, layout(1, 1)).load, 4 * 1e7 / kRead, 1e-12);
  hardware.devices_per_host = 2;
  EXPECT_NEAR(waits(1), 2 * 3 * 1e7 / kRead, 1e-12);
}

// Each rank receives what the others of its group keep.
TEST(WeightWait, AGatherTakesItsBytesOverTheLinks) {
  const HardwareProfile hardware = machine(4);
  Work work = work_of(2);
  const auto alone = [&](int data, int ring) { return step_of(work, hardware, layout(data, ring)); };
  for (const int shards : {2, 4}) {
    const StepPrediction step = step_of(work, hardware, layout(2, 2, shards));
    const double gather = 1e7 * (shards - 1) / shards / kBandwidth;
    // The links carry attention's transfers too, which is less than the compute hides.
    EXPECT_GE(step.seconds, 4 * gather);
    EXPECT_LE(step.seconds, 4 * gather + alone(2, 2).seconds);
    EXPECT_EQ(step.weights_level, "wires");
  }
  // Two branches on two ranks send nothing else.
  EXPECT_NEAR(step_of(work, machine(2), layout(2, 1, 2)).seconds, 4 * 5e6 / kBandwidth, 1e-12);
  work.weights.ranks_here = 4;
  EXPECT_EQ(step_of(work, hardware, layout(2, 2, 4)).seconds, alone(2, 2).seconds);
}

TEST(WeightWait, FastLinksHideAGather) {
  HardwareProfile hardware = machine(2);
  hardware.links[0].bandwidth = 1e12;
  const double without = step_of(work_of(2), hardware, layout(2, 1)).seconds;
  EXPECT_DOUBLE_EQ(step_of(work_of(2), hardware, layout(2, 1, 2)).seconds, without);
  // Where a transfer takes the cores' own time, nothing hides it.
  hardware.links[0].overlap = 0;
  EXPECT_NEAR(step_of(work_of(2), hardware, layout(2, 1, 2)).seconds, without + 4 * 5e6 / 1e12, 1e-12);
}

// A ring's hop that nothing hides meets weights for the share of the time that they take, and then waits until those
// on their way have passed.
TEST(WeightWait, AttentionWaitsForWeightsOnTheirWay) {
  const HardwareProfile hardware = machine(2);
  Work work = work_of();
  work.linear_flop = 2e10;  // 10 ms a layer on each of two ranks
  work.weights.layer = Bytes(16'000'000);
  const StepPrediction alone = step_of(work, hardware, layout(1, 2)), shared = step_of(work, hardware, layout(1, 2, 2));
  ASSERT_GT(alone.critical().exposed_ring, 0);
  const double gather = 8e6 / kBandwidth, busy = gather / (alone.seconds / 4);
  EXPECT_NEAR(shared.critical().weights, 4 * busy * static_cast<double>(kWeightsUnderWay) / kBandwidth, 1e-9);
  // Branches that are computed apart wait each for itself.
  work.branches = 2;
  work.samples_apart = true;
  const double apart = step_of(work, hardware, layout(1, 2)).seconds / 8;
  EXPECT_NEAR(step_of(work, hardware, layout(1, 2, 2)).critical().weights,
              8 * gather / apart * static_cast<double>(kWeightsUnderWay) / kBandwidth, 1e-9);
  work = work_of();
  work.linear_flop = 4e11;
  work.weights.layer = Bytes(32'000'000);
  // Of four ranks three have as much on its way to each.
  const double of_four = step_of(work, machine(4), layout(1, 4)).seconds / 4;
  const double all = 24e6 / kBandwidth, passing = 3 * static_cast<double>(kWeightsUnderWay) / kBandwidth;
  const double once = 4 * all / of_four * passing,
               waited = step_of(work, machine(4), layout(1, 4, 4)).critical().weights;
  EXPECT_GE(waited, once * (1 - 1e-9));
  EXPECT_NEAR(waited / once, std::round(waited / once), 1e-6);  // a ring of four has several hops
  // Of smaller layers no more can be on its way.
  work.linear_flop = 2e10;
  work.weights.layer = Bytes(2'000'000);
  const double small = 1e6 / kBandwidth;
  EXPECT_NEAR(step_of(work, hardware, layout(1, 2, 2)).critical().weights, 4 * small / (alone.seconds / 4) * small,
              1e-9);
}

// Groups within a fast level do not wait for a slow one.
TEST(WeightWait, AGatherStaysAmongNeighbours) {
  HardwareProfile hardware = machine(2);
  hardware.devices = 4;
  LinkLevel between = hardware.links[0];
  between.name = "between";
  between.bandwidth /= 100;
  hardware.links.push_back(between);
  const auto waits = [&](int shards) { return step_of(work_of(), hardware, layout(1, 4, shards)).critical().weights; };
  EXPECT_LT(waits(2), 4 * 5e6 / kBandwidth * 1.5);
  EXPECT_GT(waits(4), 50 * waits(2));
}

TEST(WeightWait, NoMoreWaitingWithAFasterDisk) {
  double before = 1e9;
  for (const double rate : {1e7, 1e8, 3e8, 1e9, 1e10}) {
    HardwareProfile hardware = machine(1);
    hardware.disk_read = rate;
    const double seconds = step_of(streamed(2), hardware).seconds;
    EXPECT_LE(seconds, before);
    before = seconds;
  }
}

}  // namespace
}  // namespace zoetrope::planner
