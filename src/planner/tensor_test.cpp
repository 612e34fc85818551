// Ranks that share every layer: what they compute, send and hold, against sums made by hand; and when the search takes
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_folder.h"
#include "planner/layer_walk.h"
#include "planner/memory_model.h"
#include "planner/search.h"
#include "planner/search_space.h"

namespace zoetrope::planner {
namespace {

using parallel::ParallelLayout;
using ::testing::HasSubstr;

constexpr double kPeak = 1e12, kBandwidth = 1e9;

LinkLevel link(const char* name, int members, double bandwidth = kBandwidth) {
  LinkLevel level;
  level.name = name;
  level.members = members;
  level.bandwidth = bandwidth;
  return level;
}

// Switches without latency; products and attention at the peak, nothing else takes time.
HardwareProfile machine(int devices, const std::vector<LinkLevel>& links) {
  HardwareProfile made;
  made.name = "made up";
  made.devices = made.devices_per_host = devices;
  made.device_memory = Bytes(80'000'000'000);
  made.bf16.peak = made.float32.peak = kPeak;
  made.bf16.gemm = made.float32.gemm = made.bf16.attention = made.float32.attention = Curve(1.0);
  made.memory_bandwidth = 1e12;
  made.host_read = 1e9;
  made.chunk_overlap = 1;
  made.links = links;
  return made;
}
HardwareProfile machine(int devices, double bandwidth = kBandwidth) {
  return machine(devices, {link("wires", devices, bandwidth)});
}

Work small_work(int branches = 1) {
  Work made;
  made.layers = 3;
  made.tokens = 960;
  made.heads = 12;
  made.head_dim = 64;
  made.width = 768;
  made.linear_flop = 3e9;
  made.cross_flop = 1e9;
  made.branches = branches;
  made.steps = 5;
  return made;
}

Configuration configuration(int data, int ulysses, int ring, int tensor) {
  Configuration made;
  made.layout.data = data;
  made.layout.context = {ulysses, ring};
  made.layout.tensor = tensor;
  return made;
}

// Of a row: three products, float32, and what becomes of them, two bytes an element; and three sums of squares, there
// and back.
constexpr int64_t kOfRow = 3 * 768 * (4 + 2) + 3 * 4 * 2;

TEST(Tensor, RanksDivideProductsAndHeads) {
  const Work work = small_work();
  const Breakdown part = simulate_step(work, machine(4), configuration(1, 1, 1, 4)).critical();
  EXPECT_NEAR(part.linear, 3 * 4e9 / 4 / kPeak, 1e-12);
  EXPECT_NEAR(part.attention, 3 * 4.0 * 960 * 960 * 768 / 4 / kPeak, 1e-12);
  EXPECT_EQ(part.exposed_exchange + part.exposed_ring + part.idle, 0);
}

// Five units of the feed-forward over two ranks are three and two, and the larger share counts.
TEST(Tensor, TheLargestShareOfTheFeedForwardCounts) {
  Work work = small_work();
  work.hidden_flop = 2e9;
  work.hidden_units = 5;
  EXPECT_DOUBLE_EQ(work.layer_flop(1), 4e9);
  EXPECT_DOUBLE_EQ(work.layer_flop(2), 2e9 / 2 + 2e9 * 3 / 5);
  const Breakdown part = simulate_step(work, machine(2), configuration(1, 1, 1, 2)).critical();
  EXPECT_NEAR(part.linear, 3 * 2.2e9 / kPeak, 1e-12);
}

// A rank sends each of the others its share of the rows of every partial sum, and its own rows of the result.
TEST(Tensor, SumsTakeWhatTheirBytesTake) {
  const Work work = small_work();
  for (const int tensor : {2, 4}) {
    const StepPrediction step = simulate_step(work, machine(4), configuration(1, 1, 1, tensor));
    const double bytes = 3.0 * 960 * kOfRow * (tensor - 1) / tensor;
    EXPECT_NEAR(step.critical().tensor, bytes / kBandwidth, 1e-9);
    EXPECT_NEAR(step.critical().total(), step.seconds, 1e-9);
    EXPECT_THAT(step.limited_by(), HasSubstr("sums over tensor ranks over 'wires'"));
  }
  // A context halves the rows of each group; both branches double them.
  EXPECT_NEAR(simulate_step(work, machine(8), configuration(1, 2, 1, 4)).critical().tensor,
              3.0 * 480 * kOfRow * 3 / 4 / kBandwidth, 1e-9);
  EXPECT_NEAR(simulate_step(small_work(2), machine(4), configuration(1, 1, 1, 4)).critical().tensor,
              2 * 3.0 * 960 * kOfRow * 3 / 4 / kBandwidth, 1e-9);
  EXPECT_EQ(simulate_step(work, machine(4), configuration(1, 4, 1, 1)).critical().tensor, 0);
}

// Five sums, each there and back, of every chunk of every sample.
TEST(Tensor, EveryChunkPaysTenLatencies) {
  HardwareProfile late = machine(2);
  late.links[0].latency = 1e-3;
  const auto latencies = [&](const Work& work) {
    return simulate_step(work, late, configuration(1, 1, 1, 2)).critical().tensor -
           simulate_step(work, machine(2), configuration(1, 1, 1, 2)).critical().tensor;
  };
  Work work = small_work();
  EXPECT_NEAR(latencies(work), 3 * 10 * 1e-3, 1e-9);
  work.sum_rows = 400;
  EXPECT_NEAR(latencies(work), 3 * 3 * 10 * 1e-3, 1e-9);
  work.branches = 2;
  EXPECT_NEAR(latencies(work), 2 * 3 * 3 * 10 * 1e-3, 1e-9);
}

// Nodes of four: a tensor group is in one, the exchange crosses.
TEST(Tensor, NeighboursAddUpAndTheContextCrosses) {
  const HardwareProfile nodes = machine(8, {link("node", 4), link("net", 2, kBandwidth / 100)});
  const Work work = small_work();
  const StepPrediction inside = simulate_step(work, nodes, configuration(1, 2, 1, 4), Timeline::kLayer);
  EXPECT_EQ(inside.tensor_level, "node");
  EXPECT_EQ(inside.exchange_level, "net");
  EXPECT_NEAR(inside.critical().tensor, 3.0 * 480 * kOfRow * 3 / 4 / kBandwidth, 1e-9);
  const auto received = [](const StepPrediction& step, int rank, const char* name) {
    int64_t bytes = 0;
    for (const TimelineSpan& span : step.layer)
      if (span.rank == rank && span.name == name) bytes += span.bytes;
    return bytes;
  };
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(received(inside, rank, "sums over tensor ranks"), 3 * 120 * kOfRow) << rank;
  // Devices 0 and 2, and 1 and 3, are contexts; a level that joins 0 and 1 has nothing of theirs.
  const StepPrediction pairs =
      simulate_step(work, machine(4, {link("pair", 2), link("net", 2)}), configuration(1, 2, 1, 2));
  EXPECT_EQ(pairs.tensor_level, "pair");
  EXPECT_EQ(pairs.exchange_level, "net");
  const HardwareProfile far = machine(4, {link("pair", 2), link("net", 2, kBandwidth / 100)});
  EXPECT_EQ(simulate_step(work, far, configuration(1, 1, 1, 4)).tensor_level, "net");
}

// q, k, v and o of six heads, of which a rank keeps three.
TEST(Tensor, UlyssesExchangesTheHeadsOfATensorRank) {
  const Breakdown part = simulate_step(small_work(), machine(4), configuration(1, 2, 1, 2)).critical();
  const double tensor_bytes = 960.0 * 6 * 64 * 2 / 2 / 2;
  EXPECT_NEAR(part.exposed_exchange, 3 * 4 * tensor_bytes / kBandwidth, 1e-12);
  EXPECT_NEAR(part.attention, 3 * 4.0 * 960 * 960 * 768 / 4 / kPeak, 1e-12);
}

TEST(Tensor, EveryTensorRankGathersTheVelocity) {
  Work work = small_work(2);
  work.latent_bytes = 8'000'000;
  const auto gather = [&](int data, int ulysses, int tensor) {
    return simulate_step(work, machine(8), configuration(data, ulysses, 1, tensor)).critical().gather;
  };
  EXPECT_NEAR(gather(2, 2, 2), gather(2, 2, 1), 1e-12);
  EXPECT_NEAR(gather(2, 1, 2), 8e-3, 1e-12);
  EXPECT_EQ(gather(1, 1, 4), 0);
}

// Patch embedding and projection are computed whole by every tensor rank.
TEST(Tensor, TheEndsAreNotDivided) {
  Work work = small_work();
  const auto linear = [&](int tensor) {
    return simulate_step(work, machine(4), configuration(1, 1, 1, tensor)).critical().linear;
  };
  const double without = linear(4);
  work.ends_flop = 1e9;
  EXPECT_NEAR(linear(4) - without, 1e9 / kPeak, 1e-12);
}

// Two tensor ranks of each of two places: places share, so that every gather crosses.
TEST(Tensor, PlacesShareTheWeightsOfTheirPart) {
  const HardwareProfile hardware = machine(4, {link("pair", 2, 1e12), link("net", 2, kBandwidth / 100)});
  Work work = small_work();
  work.weights.layer = Bytes(40'000'000);
  work.weights.parts[2] = {Bytes(24'000'000), 0, {}};  // a part of it is not divided
  Configuration made = configuration(1, 1, 2, 2);
  made.layout.weight_shards = 2;
  const StepPrediction step = simulate_step(work, hardware, made);
  EXPECT_EQ(step.weights_level, "net");
  // Both groups send half of 24 MB each way through the port of a pair.
  EXPECT_NEAR(step.critical().weights, 3 * 2 * 12e6 / (kBandwidth / 100), 0.1);
  work.weights.ranks_here = 4;
  EXPECT_EQ(simulate_step(work, hardware, made).critical().weights, 0);
}

// Every tensor rank reads its part, in a process of its own or not; the disk gives each part once.
TEST(Tensor, ProcessesReadTheirPartOfALayer) {
  HardwareProfile hardware = machine(4, 1e15);
  hardware.disk_read = 1e7;
  hardware.host_read = 1e8;
  Work work = small_work();
  work.weights.layer = work.weights.read = Bytes(10'000'000);
  work.weights.fetched = 3;
  work.weights.parts[2] = {Bytes(5'000'000), 2, Bytes(5'000'000)};
  const auto waits = [&](int ranks_here, int context, int tensor) {
    work.weights.ranks_here = ranks_here;
    return simulate_step(work, hardware, configuration(1, 1, context, tensor)).critical().weights;
  };
  EXPECT_NEAR(waits(1, 1, 1), 3 * 1e7 / 1e7, 0.1);
  EXPECT_NEAR(waits(1, 1, 2), 2 * (2 * 5e6 / 1e7), 0.1);
  EXPECT_NEAR(waits(2, 1, 2), 2 * (2 * 5e6 / 1e7), 0.1);
  EXPECT_NEAR(waits(4, 2, 2), 2 * (2 * 5e6 / 1e7), 0.1);
  hardware.disk_read = 0;  // by two processes from the page cache
  EXPECT_NEAR(waits(1, 1, 2), 2 * (2 * 5e6 / 1e8), 0.02);
  EXPECT_NEAR(waits(1, 2, 2), 4 * (2 * 5e6 / 1e8), 0.02);
  EXPECT_NEAR(waits(4, 2, 2), 2 * (2 * 5e6 / 1e8), 0.02);
}

// ---- memory ----

// Two data × two tensor coordinates of a process have prompts of their own; buffers are those of half the heads.
TEST(Tensor, RanksOfAProcessHoldTheHeadsOfTheirPart) {
  Workload w;
  w.experts.resize(1);
  w.experts[0].name = "transformer";
  w.experts[0].context = Bytes(1'000'000'000);
  w.attention = {.batch = 1, .tokens = 1000, .heads = 2, .head_dim = 16, .element_bytes = 4};
  w.layout.data = 2;
  w.layout.context = {2, 1};
  w.layout.tensor = 2;
  w.ranks_here = 8;
  Bytes attention;
  for (int context = 0; context < 2; ++context)
    attention += attention_workspace(w.attention, w.layout.context, parallel::Softmax::kOnline, context) * 4;
  EXPECT_EQ(memory_model(w).peak().total(), Bytes(4'000'000'000) + attention);
  w.ranks_here = 1;
  EXPECT_EQ(memory_model(w).peak().total(),
            Bytes(1'000'000'000) + attention_workspace(w.attention, w.layout.context, parallel::Softmax::kOnline, 0));
}

// ---- the search ----

Question question(int ranks, double bandwidth, double latency = 0) {
  Question q;
  q.work = small_work(2);
  q.work.tokens = 8192;
  q.work.linear_flop = 2.0 * 8192 * 768 * 768 * 14;
  q.work.sum_rows = 1600;
  q.work.latent_bytes = 1 << 20;
  q.work.vae_flop = 1e12;
  q.work.vae_rows = 60;
  q.hardware = machine(ranks, bandwidth);
  q.hardware.links[0].latency = latency;
  q.ranks = ranks;
  // 40 GB of weights that tensor ranks divide, 1 GB of each rank, and 4 GB over those of a context.
  q.memory = [](const ParallelLayout& layout, int ranks_here) {
    Workload w;
    w.layout = layout;
    w.ranks_here = ranks_here;
    w.experts.resize(1);
    w.experts[0].name = "transformer";
    w.experts[0].weights.resident = Bytes(40'000'000'000) / (layout.tensor * layout.weight_shards);
    w.experts[0].workspace = Bytes(1'000'000'000) + Bytes(4'000'000'000) / layout.context.ranks();
    w.attention = {1, 8192, 12 / layout.tensor, 64, 2};
    return w;
  };
  return q;
}

std::string refusal(const Question& q) {
  return error_of([&] { search(q); });
}

TEST(TensorSearch, EverySplitOfEveryDegreeIsLegal) {
  const Question q = question(8, 1e9);
  std::vector<int> degrees;
  for (const ParallelLayout& split : legal_splits(q, 8)) {
    EXPECT_EQ(split.ranks(), 8);
    check(split, 8, q.work.heads);
    EXPECT_LE(split.context.ulysses, 12 / split.tensor);
    if (degrees.empty() || degrees.back() != split.tensor) degrees.push_back(split.tensor);
  }
  EXPECT_EQ(degrees, (std::vector<int>{1, 2, 4}));  // 8 does not divide 12 heads
}

TEST(TensorSearch, HeadsOfATensorRankLimitUlysses) {
  Question q = question(16, 1e9);
  q.request.data = 1;
  q.request.tensor = 4;
  int most = 0;
  for (const Candidate& c : search(q).candidates) {
    if (c.verdict == Verdict::kIllegal) continue;
    EXPECT_EQ(c.configuration.layout.tensor, 4);
    most = std::max(most, c.configuration.layout.context.ulysses);
  }
  EXPECT_EQ(most, 2);  // of 3 heads; 4 does not
  q.request.context.ulysses = 4;
  EXPECT_THAT(refusal(q), HasSubstr("ulysses_shards=4 is more than the 3 heads that tensor_parallelism=4 leaves"));
  EXPECT_THAT(refusal(q), HasSubstr("legal values: 1, 2"));
}

TEST(TensorSearch, WhatIsNotLegalIsRefusedWithWhatIs) {
  Question q = question(8, 1e9);
  q.request.tensor = 8;
  EXPECT_THAT(refusal(q), HasSubstr("tensor_parallelism=8"));
  EXPECT_THAT(refusal(q), HasSubstr("legal values: 1, 2, 4"));
  q.request.tensor = 4;
  q.request.context_ranks = 4;
  EXPECT_THAT(refusal(q), HasSubstr("context_parallelism=4 is not possible for 8 ranks with tensor_parallelism=4"));
  q.request.context_ranks.reset();
  q.request.weight_shards = 4;
  EXPECT_THAT(refusal(q), HasSubstr("fsdp_parallelism=4 does not divide the 2 ranks that tensor_parallelism=4 leaves"));
  q.request.weight_shards = 2;
  EXPECT_EQ(search(q).best()->configuration.layout.weight_shards, 2);
  // A search over degrees makes nothing legal that is not without.
  q.request = {};
  q.request.context_ranks = 2;
  EXPECT_THAT(refusal(q), HasSubstr("context_parallelism=2 is not possible for 8 ranks; legal values: 4, 8"));
}

// Who says how the context is split says how ranks are used.
TEST(TensorSearch, IsNotSearchedWhereTheContextIsFixed) {
  Question q = question(8, 1e15);
  q.request.context.ulysses = 2;
  q.request.data = 1;
  for (const Candidate& c : search(q).candidates) EXPECT_EQ(c.configuration.layout.tensor, 1);
  q.request.tensor = 2;
  for (const Candidate& c : search(q).candidates)
    EXPECT_EQ(c.configuration.layout.context.ring, 2) << c.configuration.text();
}

TEST(TensorSearch, SlowLinksWantWholeLayers) {
  const Ranking ranking = search(question(8, 1e9));
  EXPECT_EQ(ranking.best()->configuration.layout.tensor, 1);
  const auto divided = std::find_if(ranking.candidates.begin(), ranking.candidates.end(),
                                    [](const Candidate& c) { return c.configuration.layout.tensor > 1; });
  ASSERT_NE(divided, ranking.candidates.end());
  EXPECT_EQ(divided->verdict, Verdict::kSlower);
  EXPECT_THAT(divided->reason, HasSubstr("slower"));
}

// What one rank cannot hold two can, whose links are fast enough.
TEST(TensorSearch, MemoryWantsLayersDivided) {
  Question q = question(8, 1e13);
  q.memory_limit = Bytes(30'000'000'000);
  const Ranking ranking = search(q);
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->configuration.layout.tensor, 2);
  for (const Candidate& c : ranking.candidates)
    EXPECT_EQ(c.verdict == Verdict::kDoesNotFit, c.configuration.layout.tensor == 1) << c.configuration.text();
  q.request.tensor = 1;
  EXPECT_EQ(search(q).best(), nullptr);
  q.request.weight_shards = 2;
  EXPECT_NE(search(q).best(), nullptr);
}

// Two ranks divide layers that five cannot.
TEST(TensorSearch, FewerRanksMayBeTheLeastThatFits) {
  Question q = question(5, 1e13);
  q.memory_limit = Bytes(30'000'000'000);
  const Ranking ranking = search(q);
  EXPECT_EQ(ranking.best(), nullptr);
  EXPECT_EQ(ranking.least_that_fits.rfind("2 of these devices (", 0), 0U) << ranking.least_that_fits;
  EXPECT_THAT(ranking.least_that_fits, HasSubstr("or 5 of "));
  q.ranks = 2;
  EXPECT_NE(search(q).best(), nullptr);
}

// An odd number of tokens makes contexts uneven, which heads are not: a gain of a few thousandths is none.
TEST(TensorSearch, AGainWithinTheModelsErrorIsNone) {
  Question q = question(4, 1e15);
  q.work.tokens = 33;
  q.work.branches = 1;
  q.hardware.model_error = 0.2;
  const Ranking close = search(q);
  EXPECT_EQ(close.best()->configuration.layout.tensor, 1);
  EXPECT_TRUE(std::any_of(close.candidates.begin(), close.candidates.end(), [&](const Candidate& c) {
    return c.configuration.layout.tensor > 1 && c.value < close.best()->value && c.verdict == Verdict::kTie;
  }));
  q.hardware.model_error = 0.001;
  EXPECT_EQ(search(q).best()->configuration.layout.tensor, 4);
}

TEST(TensorSearch, DividedLayersAreLessSimple) {
  const HardwareProfile hardware = machine(4);
  EXPECT_EQ(configuration(1, 1, 1, 4).complexity(hardware), configuration(1, 4, 1, 1).complexity(hardware) + 1);
}

TEST(TensorSearch, ABoundIsNoMoreThanWhatIsSimulated) {
  for (const double bandwidth : {1e8, 1e10, 1e13}) {
    for (const double latency : {0.0, 1e-5, 1e-3}) {
      Question q = question(16, bandwidth, latency);
      q.hardware.layer_overhead = 1e-4;
      q.hardware.token_seconds = 1e-9;
      q.hardware.token_width = 768;
      for (const int64_t tokens : {int64_t{8192}, int64_t{1001}}) {
        q.work.tokens = tokens;
        q.work.int8_share = tokens == 1001 ? 0.9 : 0;
        q.hardware.bf16.int8_gain = latency > 0 ? 1.8 : 0.5;
        for (const LinkKind kind : {LinkKind::kSwitch, LinkKind::kBus, LinkKind::kTorus}) {
          q.hardware.links[0].kind = kind;
          q.hardware.links[0].shape = {16};
          for (const ParallelLayout& split : legal_splits(q, 16)) {
            Configuration made;
            made.layout = split;
            const double least = least_of_split(q.work, q.hardware, made).seconds;
            EXPECT_LE(least, simulate_step(q.work, q.hardware, made).seconds * (1 + 1e-9)) << made.text();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace zoetrope::planner
