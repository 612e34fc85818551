// The simulator against sums made by hand, against the bytes of the programs, and against itself with one figure
// changed.
#include "planner/simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "base/test_folder.h"
#include "parallel/test_program.h"
#include "parallel/traffic.h"

namespace zoetrope::planner {
namespace {

using parallel::Direction;

constexpr double kPeak = 1e12, kBandwidth = 1e9;

// A switch without latency that joins `devices`; attention at half the peak, products at all of it, nothing else.
HardwareProfile machine(int devices, LinkKind kind = LinkKind::kSwitch) {
  HardwareProfile made;
  made.name = "made up";
  made.devices = devices;
  made.bf16.peak = made.float32.peak = kPeak;
  made.bf16.gemm = made.float32.gemm = Curve(1.0);
  made.bf16.attention = made.float32.attention = Curve(0.5);
  made.memory_bandwidth = 1e12;
  made.host_read = 1e9;
  made.chunk_overlap = 1;
  LinkLevel level;
  level.name = "wires";
  level.kind = kind;
  level.members = devices;
  level.shape = {devices};
  level.bandwidth = kBandwidth;
  made.links = {level};
  return made;
}

Work small_work(int64_t tokens = 960, int64_t heads = 12, int branches = 1) {
  Work made;
  made.layers = 3;
  made.tokens = tokens;
  made.heads = heads;
  made.head_dim = 64;
  made.width = heads * made.head_dim;
  made.element_bytes = 2;
  made.linear_flop = 3e9;
  made.cross_flop = 1e9;
  made.branches = branches;
  made.steps = 5;
  return made;
}

Configuration configuration(int data, int ulysses, int ring) {
  Configuration made;
  made.layout.data = data;
  made.layout.context = {ulysses, ring};
  return made;
}

double attention_seconds(const Work& work) {
  return 4.0 * static_cast<double>(work.tokens * work.tokens * work.width) / (0.5 * kPeak);
}

double linear_seconds(const Work& work) { return (work.linear_flop + work.cross_flop) / kPeak; }

// Of one tensor of all tokens.
double tensor_seconds(const Work& work) {
  return static_cast<double>(work.tokens * work.width * work.element_bytes) / kBandwidth;
}

TEST(Simulator, OneRankComputesAndNeverWaits) {
  const Work work = small_work();
  const StepPrediction step = simulate_step(work, machine(1), configuration(1, 1, 1));
  const auto layers = static_cast<double>(work.layers);
  EXPECT_NEAR(step.critical().attention, layers * attention_seconds(work), 1e-12);
  EXPECT_NEAR(step.critical().linear, layers * linear_seconds(work), 1e-12);
  EXPECT_NEAR(step.seconds, step.critical().attention + step.critical().linear, 1e-12);
}

TEST(Simulator, EveryFigureStandsWhereItBelongs) {
  const Work work = small_work();
  HardwareProfile hardware = machine(1);
  hardware.layer_overhead = 1e-3;
  hardware.token_seconds = 1e-6;
  hardware.token_width = work.width / 2;
  const Breakdown part = simulate_step(work, hardware, configuration(1, 1, 1)).critical();
  EXPECT_NEAR(part.overhead, 3e-3, 1e-12);
  EXPECT_NEAR(part.tokens, 3 * 2e-6 * 960, 1e-12);
}

TEST(Simulator, BothBranchesAreTwiceOneOrRunSideBySide) {
  const Work one = small_work(), two = small_work(960, 12, 2);
  const HardwareProfile hardware = machine(4);
  const double alone = simulate_step(one, hardware, configuration(1, 2, 1)).seconds;
  EXPECT_NEAR(simulate_step(two, hardware, configuration(1, 2, 1)).seconds, 2 * alone, 1e-12);
  EXPECT_NEAR(simulate_step(two, hardware, configuration(2, 2, 1)).seconds, alone, 1e-12);
}

TEST(Simulator, TwoVideosTakeWhatTwoBranchesTake) {
  Work videos = small_work(), branches = small_work(960, 12, 2);
  videos.videos = 2;
  for (const Configuration& made : {configuration(1, 1, 1), configuration(1, 2, 2)})
    EXPECT_DOUBLE_EQ(simulate_step(videos, machine(4), made).seconds,
                     simulate_step(branches, machine(4), made).seconds);
}

// q, k, v and o: a rank of U keeps one part in U of each.
TEST(Simulator, TheExchangeTakesWhatItsBytesTake) {
  const Work work = small_work();
  const StepPrediction step = simulate_step(work, machine(4), configuration(1, 4, 1));
  EXPECT_NEAR(step.critical().exposed_exchange, 3 * 4 * tensor_seconds(work) / 4 * 3 / 4, 1e-12);
  EXPECT_NEAR(step.critical().attention, 3 * attention_seconds(work) / 4, 1e-12);
  EXPECT_EQ(step.exchange_level, "wires");
}

TEST(Simulator, FourTensorsCostFourLatencies) {
  HardwareProfile hardware = machine(4);
  hardware.links[0].latency = 1e-3;
  Work work = small_work();
  const auto latencies = [&] {
    return simulate_step(work, hardware, configuration(1, 4, 1)).seconds -
           simulate_step(work, machine(4), configuration(1, 4, 1)).seconds;
  };
  EXPECT_NEAR(latencies(), 3 * 4 * 1e-3, 1e-12);  // an attention of its own has no velocity
  work.latent_bytes = work.tokens * 128;
  EXPECT_NEAR(latencies(), (3 * 4 + 1) * 1e-3, 1e-12);  // and the gather of the velocity
}

TEST(Simulator, TwiceTheBandwidthHalvesWhatIsExposed) {
  const Work work = small_work();
  HardwareProfile fast = machine(4);
  fast.links[0].bandwidth *= 2;
  const auto exposed = [&](const HardwareProfile& hardware, int ulysses, int ring) {
    const Breakdown part = simulate_step(work, hardware, configuration(1, ulysses, ring)).critical();
    return part.exposed_exchange + part.exposed_ring;
  };
  EXPECT_NEAR(exposed(fast, 4, 1), exposed(machine(4), 4, 1) / 2, 1e-12);
  // Of a ring only what compute does not cover: more than the half goes.
  EXPECT_LT(exposed(fast, 1, 4), exposed(machine(4), 1, 4) / 2);
}

// R−1 hops of 2V, each under the compute of a block; the longer of both counts.
TEST(Simulator, AHopHidesUnderABlock) {
  const Work work = small_work();
  const double block = attention_seconds(work) / 16, hop = 2 * tensor_seconds(work) / 4;
  ASSERT_GT(hop, block);
  const Breakdown slow = simulate_step(work, machine(4), configuration(1, 1, 4)).critical();
  EXPECT_NEAR(slow.exposed_ring, 3 * 3 * (hop - block), 1e-12);
  HardwareProfile fast = machine(4);
  fast.links[0].bandwidth *= hop / block;
  EXPECT_NEAR(simulate_step(work, fast, configuration(1, 1, 4)).critical().exposed_ring, 0, 1e-12);
}

TEST(Simulator, WithoutOverlapAHopTakesTheDevicesOwnTime) {
  const Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.links[0].overlap = 0;
  const double hop = 2 * tensor_seconds(work) / 4;
  EXPECT_NEAR(simulate_step(work, hardware, configuration(1, 1, 4)).critical().exposed_ring, 3 * 3 * hop, 1e-12);
  // Half of it: the rest still hides under a block that is long enough.
  hardware.links[0].overlap = 0.5;
  hardware.links[0].bandwidth *= 100;
  EXPECT_NEAR(simulate_step(work, hardware, configuration(1, 1, 4)).critical().exposed_ring, 3 * 3 * hop / 200, 1e-12);
}

TEST(Simulator, TwoWaysHalveAHopOnATorusOnly) {
  const Work work = small_work();
  const auto exposed = [&](LinkKind kind, Direction direction) {
    HardwareProfile hardware = machine(4, kind);
    hardware.bf16.attention = Curve(1000.0);  // no time to hide under
    Configuration made = configuration(1, 1, 4);
    made.layout.context.direction = direction;
    return simulate_step(work, hardware, made).critical().exposed_ring;
  };
  const double hop = 3 * 2 * tensor_seconds(work) / 4, slack = 0.01 * hop;
  EXPECT_NEAR(exposed(LinkKind::kTorus, Direction::kForward), 3 * hop, slack);
  EXPECT_NEAR(exposed(LinkKind::kTorus, Direction::kTwoWay), 1.5 * hop, slack);
  // One port carries both ways out.
  EXPECT_NEAR(exposed(LinkKind::kSwitch, Direction::kTwoWay), 3 * hop, slack);
  // Without a wrap link the block that closes a forward ring goes back over all links, the way that no other takes; the
  // open chain uses both ways for as many steps.
  EXPECT_NEAR(exposed(LinkKind::kMesh, Direction::kForward), 3 * hop, slack);
  EXPECT_NEAR(exposed(LinkKind::kMesh, Direction::kOpen), 3 * hop, slack);
}

// 5 heads over 2 ranks: 2 and 3. The rank with 3 decides, the other waits.
TEST(Simulator, TheRankWithMostHeadsDecides) {
  const Work work = small_work(960, 5);
  const StepPrediction step = simulate_step(work, machine(2), configuration(1, 2, 1));
  EXPECT_EQ(step.slowest, 1);
  EXPECT_NEAR(step.critical().attention, 3 * attention_seconds(work) * 3 / 5, 1e-12);
  EXPECT_NEAR(step.critical().idle, 0, 1e-12);
  EXPECT_NEAR(step.ranks[0].idle, 3 * attention_seconds(work) / 5, 1e-6);
}

TEST(Simulator, ChunksHideTheExchangeByTheirOverlap) {
  const Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.links[0].bandwidth *= 100;  // an exchange is much shorter than what it hides under
  Configuration made = configuration(1, 4, 1);
  const double whole = simulate_step(work, hardware, made).critical().exposed_exchange;
  made.layout.context.head_chunks = 3;
  const auto exposed = [&](double overlap) {
    hardware.chunk_overlap = overlap;
    return simulate_step(work, hardware, made).critical().exposed_exchange;
  };
  EXPECT_NEAR(exposed(1), whole / 3, 1e-12);
  EXPECT_NEAR(exposed(0), whole, 1e-12);
  // The slowdown during one output exchange hides a little of the next exchange.
  EXPECT_NEAR(exposed(0.55), whole * (1 - 0.55 * 2 / 3), 0.03 * whole);
}

// Chunks hide nothing where transfers are the device's own work, there or back.
TEST(Simulator, WithoutOverlapChunksHideNothing) {
  const Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.links[0].bandwidth *= 100;
  hardware.links[0].overlap = 0;
  Configuration made = configuration(1, 4, 1);
  const double whole = simulate_step(work, hardware, made).critical().exposed_exchange;
  made.layout.context.head_chunks = 3;
  EXPECT_NEAR(simulate_step(work, hardware, made).critical().exposed_exchange, whole, 1e-12);
}

// The tokens of both context ranks first, then the branches of both data ranks.
TEST(Simulator, TheVelocityIsGatheredOnceAStep) {
  Work work = small_work(960, 12, 2);
  work.latent_bytes = 8'000'000;
  const HardwareProfile hardware = machine(4);
  EXPECT_NEAR(simulate_step(work, hardware, configuration(2, 2, 1)).critical().gather, 4e-3 + 8e-3, 1e-12);
  EXPECT_NEAR(simulate_step(work, hardware, configuration(1, 4, 1)).critical().gather, 2 * 3 * 2e-3, 1e-12);
  EXPECT_EQ(simulate_step(work, hardware, configuration(1, 1, 1)).critical().gather, 0);
}

TEST(Simulator, AVelocityOfManyTokensIsGatheredInItsBytes) {
  Work work = small_work(int64_t{1} << 30);  // 4093 frames of 16384 × 16384
  work.latent_bytes = work.tokens * 128;
  const HardwareProfile hardware = machine(3);
  const double part = std::ceil(static_cast<double>(work.tokens) / 3) * 128 / kBandwidth;
  EXPECT_NEAR(simulate_step(work, hardware, configuration(1, 3, 1)).critical().gather, 2 * part, 1e-9);
}

TEST(Simulator, ChunksThatHaveNoHeadsCostNothing) {
  const Work work = small_work(960, 4);
  Configuration few = configuration(1, 2, 2), many = few;
  few.layout.context.head_chunks = 2;
  many.layout.context.head_chunks = 7;
  EXPECT_NEAR(simulate_step(work, machine(4), few).seconds, simulate_step(work, machine(4), many).seconds, 1e-12);
}

TEST(Simulator, TilesArePadded) {
  Work work = small_work(1000);
  HardwareProfile hardware = machine(1);
  hardware.block_kv = 300;
  Configuration made = configuration(1, 1, 1);
  made.block_q = 400;
  const double expected = 3 * attention_seconds(work) * 1200 / 1000 * 1200 / 1000;
  EXPECT_NEAR(simulate_step(work, hardware, made).critical().attention, expected, 1e-12);
  // A tile is never larger than what there is.
  made.block_q = made.block_kv = 5000;
  EXPECT_NEAR(simulate_step(work, hardware, made).critical().attention, 3 * attention_seconds(work), 1e-12);
}

TEST(Simulator, FixedMaxIsFasterAndGathersOnARing) {
  const Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.bf16.fixed_max_gain = 1.25;
  Configuration online = configuration(1, 1, 1), fixed = online;
  fixed.softmax = parallel::Softmax::kFixedMax;
  EXPECT_NEAR(simulate_step(work, hardware, fixed).critical().attention,
              simulate_step(work, hardware, online).critical().attention / 1.25, 1e-12);
  hardware.links[0].latency =
      1;  // longer than all else, and not overlapped with: a record is waited for before block 0
  online.layout.context = fixed.layout.context = {1, 2};
  EXPECT_NEAR(simulate_step(work, hardware, fixed).seconds - simulate_step(work, hardware, online).seconds, 3 * 1.0,
              0.01);
}

TEST(Simulator, AttentionInInt8TakesAsMuchLessAsItGains) {
  Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.bf16.int8_attention_gain = 1.75;
  Configuration online = configuration(1, 1, 1), fixed = online;
  fixed.softmax = parallel::Softmax::kFixedMax;
  hardware.bf16.fixed_max_gain = 1.25;
  const auto attention = [&](const Configuration& made) {
    return simulate_step(work, hardware, made).critical().attention;
  };
  const double before = attention(online), before_fixed = attention(fixed);
  EXPECT_NEAR(before, 3 * attention_seconds(work), 1e-12) << "not asked for";
  work.int8_attention = true;
  EXPECT_NEAR(attention(online), before / 1.75, 1e-12);
  EXPECT_NEAR(attention(fixed), before_fixed / 1.75, 1e-12);
}

TEST(Simulator, MatricesInInt8TakeAsMuchLessAsTheyGain) {
  Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.bf16.int8_gain = 1.6;
  const auto linear = [&](const Configuration& made) { return simulate_step(work, hardware, made).critical().linear; };
  EXPECT_DOUBLE_EQ(linear(configuration(1, 1, 1)), 3 * linear_seconds(work)) << "none are";
  work.int8_share = 0.75;
  work.ends_flop = 2e9;  // patch embedding and projection stay in bf16, and so does cross-attention
  const double expected = 3 * (0.75 * 3e9 / 1.6 + 0.25 * 3e9 + 1e9) + 2e9;
  EXPECT_NEAR(linear(configuration(1, 1, 1)), expected / kPeak, 1e-12);
  EXPECT_NEAR(linear(configuration(1, 2, 2)), expected / kPeak / 4, 1e-12);
  hardware.bf16.int8_gain = 1;
  EXPECT_NEAR(linear(configuration(1, 1, 1)), (3 * 4e9 + 2e9) / kPeak, 1e-12) << "a profile that does not say it";
}

TEST(Simulator, OutputsOfRingBlocksAreMergedWhereTheProfileSaysSo) {
  const Work work = small_work();
  HardwareProfile hardware = machine(4);
  hardware.merge_passes = 8;
  EXPECT_EQ(simulate_step(work, hardware, configuration(1, 4, 1)).critical().merge, 0);
  // A rank's tokens and heads in float32, for each of two blocks.
  const double bytes = 8.0 * 2 * 480 * 384 * 4;
  EXPECT_NEAR(simulate_step(work, hardware, configuration(1, 2, 2)).critical().merge, 3 * bytes / 1e12, 1e-15);
}

TEST(Simulator, UnshardedRanksDoAllOfIt) {
  Configuration made = configuration(1, 2, 1);
  made.layout.sharded = false;
  const StepPrediction step = simulate_step(small_work(), machine(2), made);
  EXPECT_NEAR(step.seconds, simulate_step(small_work(), machine(1), configuration(1, 1, 1)).seconds, 1e-12);
  EXPECT_EQ(step.ranks[1].exposed_exchange, 0);
}

std::vector<Configuration> many_configurations() {
  std::vector<Configuration> all;
  for (const int data : {1, 2})
    for (const auto& [ulysses, ring] : {std::pair{1, 1}, {1, 5}, {4, 1}, {3, 2}, {2, 4}, {1, 2}, {5, 1}})
      for (const Direction direction : parallel::kDirections)
        for (const int chunks : {1, 2, 4})
          for (const parallel::Softmax softmax : parallel::kSoftmaxes) {
            Configuration made = configuration(data, ulysses, ring);
            made.layout.context.direction = direction;
            made.layout.context.head_chunks = chunks;
            made.softmax = softmax;
            for (const parallel::ContextLayout& layout : parallel::in_shards(made.layout.context)) {
              made.layout.context = layout;
              all.push_back(made);
            }
          }
  for (const int data : {1, 2}) {
    Configuration made = configuration(data, 1, 1);
    for (const parallel::ContextLayout& layout : parallel::in_shards({.gather = 5})) {
      made.layout.context = layout;
      all.push_back(made);
    }
  }
  return all;
}

// Two levels, everything slow enough to be seen, nothing even.
HardwareProfile uneven_machine() {
  HardwareProfile hardware = machine(2);
  LinkLevel outer = hardware.links[0];
  outer.name = "outer";
  outer.members = 8;
  outer.bandwidth /= 3;
  hardware.links.push_back(outer);
  hardware.devices = 16;
  for (LinkLevel& level : hardware.links) {
    level.latency = 1e-5;
    level.overlap = 0.8;
  }
  hardware.layer_overhead = 1e-4;
  hardware.token_seconds = 1e-7;
  hardware.merge_passes = 2;
  hardware.chunk_overlap = 0.55;
  return hardware;
}

Work uneven_work(int64_t tokens) {
  Work work = small_work(tokens, 7, 2);
  work.ends_flop = 1e8;
  work.latent_bytes = tokens * 128;
  return work;
}

TEST(Simulator, BreakdownsAddUpToTheStepOnEveryRank) {
  for (const int64_t tokens : {3, 997})
    for (const Configuration& made : many_configurations()) {
      const StepPrediction step = simulate_step(uneven_work(tokens), uneven_machine(), made);
      ASSERT_EQ(step.ranks.size(), static_cast<size_t>(made.layout.ranks()));
      for (const Breakdown& part : step.ranks) {
        EXPECT_NEAR(part.total(), step.seconds, 1e-9 * step.seconds) << made.text() << ", " << tokens << " tokens";
        EXPECT_GE(part.idle, -1e-12);
      }
    }
}

// Compute and waits of a rank fill the layer without a gap or an overlap.
TEST(Timeline, SpansOfARankFollowOneAnother) {
  for (const Configuration& made : many_configurations()) {
    const StepPrediction step = simulate_step(uneven_work(997), uneven_machine(), made, Timeline::kLayer);
    std::map<int, double> at;
    std::vector<TimelineSpan> spans = step.layer;
    std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const TimelineSpan& span : spans) {
      EXPECT_LE(span.end, step.layer_seconds * (1 + 1e-9));
      EXPECT_NE(span.part, nullptr) << span.name;
      if (span.lane == TimelineSpan::Lane::kTransfer) continue;
      EXPECT_NEAR(span.begin, at[span.rank], 1e-12) << made.text() << ": " << span.name;
      at[span.rank] = span.end;
    }
    for (const auto& [rank, end] : at) EXPECT_NEAR(end, step.layer_seconds, 1e-12) << made.text();
  }
}

// An int8 key of 64 values has 72 bytes instead of 128. They are narrowed once and widened for each block, at the speed
// of memory: three times half of the tokens, read and written. q and o travel as before.
TEST(Simulator, NarrowedKeysAndValuesArePriced) {
  const Work whole = small_work();
  Work work = whole;
  work.kv_vector_bytes = 72;
  const auto layers = static_cast<double>(work.layers);
  const StepPrediction before = simulate_step(whole, machine(2), configuration(1, 1, 2));
  const StepPrediction ring = simulate_step(work, machine(2), configuration(1, 1, 2));
  EXPECT_EQ(before.critical().tokens, 0);
  EXPECT_NEAR(ring.critical().tokens, layers * 3 * 480 * 2 * 12 * (128 + 72) / 1e12, 1e-12);
  const StepPrediction ulysses = simulate_step(work, machine(2), configuration(1, 2, 1));
  // q, k, v of half the tokens for half the heads, and o.
  EXPECT_NEAR(ulysses.critical().exposed_exchange, layers * 480 * 6 * (2 * 128 + 2 * 72) / 1e9, 1e-9);
  EXPECT_NEAR(ulysses.critical().tokens, layers * (480 * 12 + 960 * 6) * 2 * (128 + 72) / 1e12, 1e-12);
  // Nothing travels on one rank.
  EXPECT_EQ(simulate_step(work, machine(1), configuration(1, 1, 1)).seconds,
            simulate_step(whole, machine(1), configuration(1, 1, 1)).seconds);
}

// What moves on the time line are the bytes of the programs, which are those that the engine is tested to move.
TEST(Timeline, TransfersCarryTheBytesOfThePrograms) {
  bool narrow = false;
  for (const Configuration& made : many_configurations()) {
    Work work = uneven_work(997);
    narrow = !narrow;
    if (narrow) work.kv_vector_bytes = 36;
    const StepPrediction step = simulate_step(work, uneven_machine(), made, Timeline::kLayer);
    std::map<std::pair<int, std::string>, int64_t> moved;
    for (const TimelineSpan& span : step.layer)
      if (span.lane == TimelineSpan::Lane::kTransfer) moved[{span.rank, span.name}] += span.bytes;
    const auto received = [&](int rank, const char* name) {
      const auto found = moved.find({rank, name});
      return found == moved.end() ? 0 : found->second;
    };
    for (int rank = 0; rank < made.layout.ranks(); ++rank) {
      const parallel::Traffic traffic =
          parallel::traffic(attention_program(work.sizes(work.branches / made.layout.data), made.layout.context,
                                              made.softmax, made.layout.context_index(rank)));
      EXPECT_EQ(received(rank, "ulysses exchange"), traffic.exchange_received) << made.text() << ", rank " << rank;
      EXPECT_EQ(received(rank, "ring hop"), traffic.ring_received) << made.text() << ", rank " << rank;
      EXPECT_EQ(received(rank, "ring statistics"), traffic.statistics_received) << made.text() << ", rank " << rank;
      EXPECT_EQ(received(rank, "ulysses output exchange"), traffic.output_received) << made.text() << ", rank " << rank;
      EXPECT_EQ(received(rank, "key gather"), traffic.gather_received) << made.text() << ", rank " << rank;
    }
  }
}

TEST(Timeline, IsWrittenOnTheLanesOfMeasuredRuns) {
  const StepPrediction step =
      simulate_step(uneven_work(997), uneven_machine(), configuration(1, 2, 2), Timeline::kLayer);
  trace::Trace trace;
  record_timeline(step, 2, trace);
  EXPECT_EQ(trace.size(), 2 * step.layer.size());
  const TestFolder folder;
  trace.write(folder / "trace.json");
  const std::string text = file_bytes(folder / "trace.json");
  for (const char* words : {trace::kComputeLane, trace::kTransferLane, trace::kWaitLane, "attention block", "ring hop",
                            "ulysses exchange", "matrix multiplications"})
    EXPECT_THAT(text, testing::HasSubstr(words));
}

TEST(Simulator, AThousandRanksTakeLessThanASecond) {
  Work work = small_work(75600, 40, 2);
  HardwareProfile hardware = machine(8);
  LinkLevel outer = hardware.links[0];
  outer.members = 128;
  outer.ports = 8;
  hardware.links.push_back(outer);
  hardware.devices = 1024;
  Configuration made = configuration(1, 32, 32);
  made.softmax = parallel::Softmax::kFixedMax;
#ifdef __OPTIMIZE__
  constexpr double kSeconds = 1;
#else
  constexpr double kSeconds = 10;
#endif
  // Of this process: what else runs on the machine does not count.
  const std::clock_t begin = std::clock();
  const StepPrediction step = simulate_step(work, hardware, made);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kSeconds);
  EXPECT_EQ(step.ranks.size(), 1024u);
}

TEST(Simulator, ARunIsLoadTextStepsAndDecoding) {
  Work work = small_work();
  work.weights_read = Bytes(3'000'000'000);
  work.text_weights = Bytes(2'000'000'000);
  work.text_flop = 1e9;
  work.vae_flop = 1e12;
  work.vae_rows = 10;
  HardwareProfile hardware = machine(4);
  hardware.float32.convolution = 0.5;
  Configuration made = configuration(1, 4, 1);
  made.layout.vae_ranks = 4;
  made.layout.text_ranks = 2;
  const RunPrediction run = simulate_run(work, hardware, made);
  EXPECT_NEAR(run.load, 3, 1e-12);
  EXPECT_NEAR(run.text_encoder, 2e9 / 1e12 / 2, 1e-12);  // reading its weights takes longer than computing
  EXPECT_NEAR(run.vae, 1.0 / 0.5 * 3 / 10, 1e-12);       // ranks with 3 of 10 rows decide
  EXPECT_NEAR(run.denoise, 5 * run.step.seconds, 1e-12);
  EXPECT_NEAR(run.total(), run.load + run.text_encoder + run.denoise + run.vae, 1e-12);
  work.text_flop = 1e10;
  EXPECT_NEAR(simulate_run(work, hardware, made).text_encoder, 1e10 / kPeak / 2, 1e-12);
  // In the text encoder's own dtype, whatever the transformer's is.
  work.text_element_bytes = 6 - work.text_element_bytes;
  hardware.bf16.peak /= 2;
  hardware.float32.peak /= 4;
  const double peak = work.text_element_bytes == 2 ? hardware.bf16.peak : hardware.float32.peak;
  EXPECT_NEAR(simulate_run(work, hardware, made).text_encoder, 1e10 / peak / 2, 1e-9);
}

// A host's files have one way in, however many of its ranks wait for them; two hosts have two.
TEST(Simulator, TextEncodersFromFilesWaitForTheirHost) {
  Work work = small_work();
  work.text_weights = work.text_read = Bytes(2'000'000'000);
  HardwareProfile hardware = machine(4);
  hardware.host_read = 1e9;
  hardware.devices_per_host = 4;
  Configuration made = configuration(1, 4, 1);
  for (const int ranks : {1, 4}) {
    made.layout.text_ranks = ranks;
    EXPECT_NEAR(simulate_run(work, hardware, made).text_encoder, 2, 1e-12) << ranks;
  }
  hardware.devices_per_host = 2;
  EXPECT_NEAR(simulate_run(work, hardware, made).text_encoder, 1, 1e-12);
  // Two runs of a rank on each host.
  work.ranks_of_all_runs = 4;
  EXPECT_NEAR(simulate_run(work, hardware, configuration(1, 1, 1)).text_encoder, 4, 1e-12);
}

TEST(Simulator, SaysWhatLimits) {
  EXPECT_EQ(simulate_step(small_work(), machine(1), configuration(1, 1, 1)).limited_by(), "attention (59 %)");
  HardwareProfile hardware = machine(4);
  hardware.bf16.gemm = Curve(0.1);
  EXPECT_THAT(simulate_step(small_work(), hardware, configuration(1, 4, 1)).limited_by(),
              testing::StartsWith("matrix multiplications ("));
  hardware = machine(4);
  hardware.links[0].bandwidth /= 10;
  EXPECT_THAT(simulate_step(small_work(), hardware, configuration(1, 4, 1)).limited_by(),
              testing::StartsWith("exchange over 'wires' ("));
  EXPECT_THAT(simulate_step(small_work(), hardware, configuration(1, 1, 4)).limited_by(),
              testing::StartsWith("ring over 'wires' ("));
}

TEST(Configuration, IsSaidInAFewWords) {
  Configuration made = configuration(2, 2, 3);
  EXPECT_EQ(made.text(), "data 2 x context 6 (Ulysses 2 x ring 3)");
  made.layout.context.direction = Direction::kTwoWay;
  made.softmax = parallel::Softmax::kFixedMax;
  made.layout.context.head_chunks = 2;
  made.block_q = 4096;
  EXPECT_EQ(made.text(),
            "data 2 x context 6 (Ulysses 2 x ring 3, ring direction two_way, softmax fixed_max, 2 head chunks), "
            "block_q 4096");
}

}  // namespace
}  // namespace zoetrope::planner
