// The search against answers that are known beforehand, and against trying everything.
#include "planner/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/test_folder.h"
#include "planner/search_space.h"

namespace zoetrope::planner {
namespace {

using parallel::Direction;
using parallel::ParallelLayout;
using ::testing::HasSubstr;

// Eight devices of 100 TFLOP/s on a switch without latency that is fast enough not to matter.
HardwareProfile machine(int devices = 8, double bandwidth = 1e12) {
  HardwareProfile hardware;
  hardware.name = "test";
  hardware.devices = devices;
  hardware.device_memory = Bytes(int64_t{80} << 30);
  for (ComputeFigures* figures : {&hardware.bf16, &hardware.float32}) {
    figures->peak = 1e14;
    figures->gemm = Curve(0.5);
    figures->attention = Curve(0.5);
  }
  hardware.memory_bandwidth = 1e12;
  hardware.host_read = 1e9;
  hardware.devices_per_host = devices;
  LinkLevel link;
  link.name = "node";
  link.members = devices;
  link.bandwidth = bandwidth;
  hardware.links = {link};
  return hardware;
}

Work small_work() {
  Work work;
  work.name = "test";
  work.layers = 4;
  work.tokens = 8192;
  work.heads = 8;
  work.head_dim = 128;
  work.width = 1024;
  work.linear_flop = 2.0 * 8192 * 1024 * 1024 * 14;
  work.branches = 2;
  work.steps = 10;
  work.latent_bytes = 1 << 20;
  work.weights_read = Bytes(1'000'000'000);
  work.vae_flop = 1e12;
  work.vae_rows = 60;
  return work;
}

// A process holds 8 GB and 16 GB over the ranks.
Workload small_memory(const ParallelLayout& layout, int ranks_here) {
  Workload w;
  w.layout = layout;
  w.ranks_here = ranks_here;
  w.program = Bytes(8'000'000'000);
  w.experts.resize(1);
  w.experts[0].name = "transformer";
  w.experts[0].workspace = Bytes(16'000'000'000) / layout.ranks();
  w.attention = {1, 8192, 8, 128, 2};
  return w;
}

Question question(int ranks, HardwareProfile hardware = machine()) {
  Question q;
  q.work = small_work();
  q.hardware = std::move(hardware);
  q.ranks = ranks;
  q.memory = small_memory;
  return q;
}

const Candidate* find(const Ranking& ranking, Verdict verdict) {
  for (const Candidate& c : ranking.candidates)
    if (c.verdict == verdict) return &c;
  return nullptr;
}

std::string refusal(const Question& q) {
  return error_of([&] { search(q); });
}

TEST(Search, OneRankHasOneSplit) {
  const Ranking ranking = search(question(1));
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->ranks(), 1);
  EXPECT_EQ(ranking.candidates.size(), 1U);
  EXPECT_EQ(ranking.best()->reason.rfind("limited by", 0), 0U) << ranking.best()->reason;
}

// Branches on halves of the ranks exchange a fourth of what one sequence over all ranks does, a branch after the other.
TEST(Search, SlowLinksWantTheBranchesApart) {
  const Ranking ranking = search(question(2, machine(2, 1e9)));
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->configuration.layout.data, 2);
  const Candidate* slower = find(ranking, Verdict::kSlower);
  ASSERT_NE(slower, nullptr);
  EXPECT_EQ(slower->configuration.layout.data, 1);
  EXPECT_THAT(slower->reason, HasSubstr(" % slower: ring +"));
}

// Two hosts of four, a slow port a device: a ring over all of them crosses by one port, Ulysses sends q and o too.
TEST(Search, UlyssesStaysInsideAHostAndTheRingGoesAcross) {
  HardwareProfile hardware = machine(8, 1e12);
  hardware.links[0].members = 4;
  LinkLevel slow = hardware.links[0];
  slow.name = "cluster";
  slow.members = 2;
  slow.bandwidth = 2e9;
  slow.ports = 4;
  hardware.links.push_back(slow);
  Question q = question(8, hardware);
  q.work.branches = 1;
  q.work.tokens = 65536;
  const Ranking ranking = search(q);
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->configuration.layout.context.ulysses, 4) << ranking.best()->reason;
  EXPECT_EQ(ranking.best()->configuration.layout.context.ring, 2) << ranking.best()->reason;
}

TEST(Search, TheBestIsTheFastestAndTheSimplerTieIsNamed) {
  HardwareProfile hardware = machine();
  hardware.bf16.fixed_max_gain = 1.04;  // of attention alone: less than 5 % of a step
  const Ranking ranking = search(question(4, hardware));
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->configuration.softmax, parallel::Softmax::kFixedMax);
  for (const Candidate& c : ranking.candidates)
    EXPECT_TRUE(c.verdict == Verdict::kIllegal || ranking.best()->value <= c.value * (1 + 1e-9)) << c.reason;
  const Candidate* simpler = ranking.simpler();
  ASSERT_NE(simpler, nullptr);
  EXPECT_EQ(simpler->verdict, Verdict::kTie);
  EXPECT_EQ(simpler->complexity, 0);
  EXPECT_EQ(simpler->configuration.softmax, parallel::Softmax::kOnline);
  EXPECT_THAT(simpler->reason, HasSubstr("% slower, less than the model's error of 5.0 %"));
  for (const Candidate& c : ranking.candidates) {
    if (c.verdict != Verdict::kTie) continue;
    EXPECT_THAT(c.reason, HasSubstr("less than the model's error"));
    EXPECT_LE(c.value, ranking.best()->value * 1.05);
    EXPECT_TRUE(c.complexity > 0 || simpler->value <= c.value * (1 + 1e-9)) << c.reason;
  }
  // What is clearly faster is no tie, and what is as simple needs nothing beside it.
  hardware.bf16.fixed_max_gain = 2;
  const Ranking clear = search(question(1, hardware));
  EXPECT_EQ(clear.best()->configuration.softmax, parallel::Softmax::kFixedMax);
  EXPECT_EQ(clear.simpler(), nullptr);
  EXPECT_EQ(search(question(1)).simpler(), nullptr);
}

// In a memory that ranks share; elsewhere, and where it takes longer, the fastest is the fastest. Here Ulysses is,
// since a ring folds its blocks into a state.
TEST(Search, OfWhatTakesTheSameTimeTheLongestRingIsTheBest) {
  HardwareProfile hardware = machine(4, 1e15);
  hardware.merge_passes = 1;
  const auto asked = [&](LinkKind kind, double memory_bandwidth) {
    hardware.links[0].kind = kind;
    hardware.memory_bandwidth = memory_bandwidth;
    Question q = question(4, hardware);
    q.work.branches = 1;
    return q;
  };
  const auto best_on = [&](LinkKind kind, double memory_bandwidth) { return search(asked(kind, memory_bandwidth)); };
  const auto ring_of = [](const Ranking& ranking) {
    return ranking.best() == nullptr ? 0 : ranking.best()->configuration.layout.context.ring;
  };
  const Ranking shared = best_on(LinkKind::kBus, 1e13);
  ASSERT_EQ(ring_of(shared), 4);
  EXPECT_THAT(shared.best()->reason, HasSubstr("of the simplest within 0.3 % of the fastest the longest ring, 0."));
  EXPECT_EQ(ring_of(best_on(LinkKind::kSwitch, 1e13)), 1);
  EXPECT_EQ(ring_of(best_on(LinkKind::kBus, 1e11)), 1);
  Question guided = asked(LinkKind::kBus, 1e13);
  guided.work.branches = 2;
  EXPECT_EQ(search(guided).best()->configuration.layout.data, 2);
  EXPECT_EQ(ring_of(search(guided)), 2);
  Question cheapest = asked(LinkKind::kBus, 1e13);
  cheapest.objective = Objective::kCost;
  EXPECT_EQ(ring_of(search(cheapest)), 1);
  // Two ranks a memory, and a network between that is as fast.
  Question hosts = asked(LinkKind::kBus, 1e13);
  hosts.hardware.links.push_back(hosts.hardware.links[0]);
  hosts.hardware.links[0].members = hosts.hardware.links[1].members = 2;
  hosts.hardware.links[1].name = "cluster";
  hosts.hardware.links[1].kind = LinkKind::kSwitch;
  EXPECT_EQ(ring_of(search(hosts)), 1);
}

TEST(Search, TilesAreChosenAndTheOthersShown) {
  HardwareProfile hardware = machine();
  hardware.bf16.attention = Curve({{1024, 0.1}, {4096, 0.5}});
  hardware.block_q = 1024;
  hardware.block_q_choices = {1024, 4096};
  const Ranking ranking = search(question(1, hardware));
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_EQ(ranking.best()->configuration.block_q, 4096);
  const Candidate* slower = find(ranking, Verdict::kSlower);
  ASSERT_NE(slower, nullptr);
  EXPECT_EQ(slower->configuration.block_q, 1024);
  EXPECT_THAT(slower->reason, HasSubstr("attention +"));
}

TEST(Search, MemoryDecidesWhatIsLegalAtAll) {
  Question q = question(2);
  q.memory_limit = Bytes(12'000'000'000);
  const Ranking ranking = search(q);
  EXPECT_EQ(ranking.best(), nullptr);
  const Candidate* first = &ranking.candidates.front();
  EXPECT_EQ(first->verdict, Verdict::kDoesNotFit);
  EXPECT_GT(first->bytes_per_rank, *q.memory_limit);
  EXPECT_THAT(first->reason, HasSubstr("needs 16.0 GB"));
  EXPECT_THAT(first->reason, HasSubstr("more than 12.0 GB, in phase 'denoise with transformer'"));
  // 8 + 16 / 4 is 12, and attention books a little.
  EXPECT_EQ(ranking.least_that_fits.rfind("5 of these devices (11.", 0), 0U) << ranking.least_that_fits;
  q.memory_limit = Bytes(7'000'000'000);
  EXPECT_THAT(search(q).least_that_fits, HasSubstr("never enough"));
  q.memory_limit = Bytes(20'000'000'000);
  EXPECT_NE(search(q).best(), nullptr);
  EXPECT_EQ(search(q).least_that_fits, "");
  // Nothing is a limit too: what a full control group leaves.
  q.memory_limit = Bytes();
  EXPECT_EQ(search(q).best(), nullptr);
  q.memory_limit.reset();
  EXPECT_NE(search(q).best(), nullptr);
}

TEST(Search, MoreRanksThanDevicesAreRefused) {
  EXPECT_THAT(refusal(question(4, machine(2))), HasSubstr("hardware test has 2 devices for 4 ranks"));
}

// What needs less memory wins where the rest does not fit: here decoding, whose frames are shared.
TEST(Search, RanksThatDecodeFollowMemory) {
  Question q = question(4);
  q.memory = [](const ParallelLayout& layout, int ranks_here) {
    Workload w = small_memory(layout, ranks_here);
    w.vae.workspace = Bytes(40'000'000'000) / layout.vae_ranks;
    return w;
  };
  EXPECT_EQ(search(q).best()->configuration.layout.vae_ranks, 4);
  q.memory_limit = Bytes(30'000'000'000);
  const Ranking ranking = search(q);
  EXPECT_EQ(ranking.best()->configuration.layout.vae_ranks, 4);
  bool seen = false;
  for (const Candidate& c : ranking.candidates) {
    if (c.configuration.layout.vae_ranks != 1) continue;
    seen = true;
    EXPECT_EQ(c.verdict, Verdict::kDoesNotFit);
    EXPECT_THAT(c.reason, HasSubstr("VAE decode"));
  }
  EXPECT_TRUE(seen);
  q.request.vae_ranks = 2;
  EXPECT_EQ(search(q).best()->configuration.layout.vae_ranks, 2);
}

TEST(Search, RanksOfOneProcessShareItsMemory) {
  Question q = question(4);
  q.ranks_here = 4;
  const Candidate shared = *search(q).best();
  q.ranks_here = 1;
  const Candidate apart = *search(q).best();
  // 8 GB once for all, 16 / 4 each.
  EXPECT_NEAR(shared.bytes_per_rank.gigabytes(), 6, 0.2);
  EXPECT_NEAR(apart.bytes_per_rank.gigabytes(), 12, 0.2);
}

// A reason's total, its limit and its parts are of the same thing, which it names.
TEST(Search, WhatDoesNotFitIsCountedPerProcess) {
  for (const int here : {1, 4}) {
    Question q = question(4);
    q.ranks_here = here;
    q.memory_limit = Bytes(5'000'000'000);
    const Ranking ranking = search(q);
    const Candidate& c = ranking.candidates.front();
    ASSERT_EQ(c.verdict, Verdict::kDoesNotFit);
    EXPECT_THAT(c.reason, HasSubstr(here == 1 ? "a rank needs " : "a process of 4 ranks needs "));
    EXPECT_THAT(c.reason, HasSubstr(here == 1 ? "more than 5.00 GB" : "more than 20.0 GB"));
    EXPECT_THAT(c.reason, HasSubstr(fmt::format("needs {}", c.memory.peak().total().text())));
    EXPECT_THAT(c.reason, HasSubstr(c.memory.peak().text()));
  }
}

TEST(Search, EveryNumberOfRanksHasALegalPlan) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    Question q = question(ranks, machine(16));
    q.work.heads = 5;
    const Ranking ranking = search(q);
    ASSERT_NE(ranking.best(), nullptr) << ranks;
    EXPECT_EQ(ranking.best()->ranks(), ranks);
    std::set<std::string> texts;
    for (const Candidate& c : ranking.candidates) {
      if (c.verdict == Verdict::kIllegal) continue;
      EXPECT_LE(c.configuration.layout.context.ulysses, 5);
      EXPECT_EQ(c.ranks(), ranks);
      EXPECT_TRUE(texts.insert(c.configuration.text() + std::to_string(c.configuration.layout.vae_ranks)).second);
    }
  }
}

TEST(Search, WhatIsIllegalSaysWhy) {
  Question q = question(7);
  q.work.heads = 4;
  Ranking ranking = search(q);
  std::string reasons;
  for (const Candidate& c : ranking.candidates)
    if (c.verdict == Verdict::kIllegal) reasons += c.reason + "\n";
  EXPECT_THAT(reasons, HasSubstr("7 ranks cannot be halved"));
  EXPECT_THAT(reasons, HasSubstr("7 Ulysses ranks, but 4 heads"));
  q.work.branches = 1;
  EXPECT_THAT(find(search(q), Verdict::kIllegal)->reason, HasSubstr("one branch"));
}

TEST(Search, WithoutShardsOnlyTheBranchesAreSplit) {
  Question q = question(8);
  q.sharded = false;
  std::multiset<int> data;
  for (const Candidate& c : search(q).candidates)
    if (const ParallelLayout& at = c.configuration.layout; at.vae_ranks == 8 && at.tensor == 1) data.insert(at.data);
  EXPECT_EQ(data, (std::multiset<int>{1, 2}));
  EXPECT_EQ(search(q).best()->configuration.layout.data, 2);
}

TEST(Search, FixedValuesAreKept) {
  Question q = question(8);
  q.request.data = 1;
  q.request.context.ulysses = 2;
  q.request.context.direction = Direction::kTwoWay;
  q.request.context.head_chunks = 3;
  q.softmax = parallel::Softmax::kFixedMax;
  const Ranking ranking = search(q);
  ASSERT_NE(ranking.best(), nullptr);
  for (const Candidate& c : ranking.candidates) {
    EXPECT_EQ(c.configuration.layout.data, 1);
    EXPECT_EQ(c.configuration.layout.context, (parallel::ContextLayout{2, 4, Direction::kTwoWay, 3}));
    EXPECT_EQ(c.configuration.softmax, parallel::Softmax::kFixedMax);
  }
}

TEST(Search, TwoDimensionsAreTwo) {
  Question q = question(8);
  q.request.context.two_dimensional = true;
  std::set<std::pair<int, int>> found;
  for (const Candidate& c : search(q).candidates) {
    const parallel::ContextLayout& context = c.configuration.layout.context;
    if (c.verdict != Verdict::kIllegal) found.insert({context.ulysses, context.ring});
  }
  EXPECT_EQ(found, (std::set<std::pair<int, int>>{{2, 2}, {2, 4}, {4, 2}}));
  for (const int ranks : {2, 3, 5}) {
    q.ranks = ranks;
    EXPECT_THAT(refusal(q), HasSubstr("a context of " + std::to_string(ranks) + " ranks"));
  }
  q.ranks = 4;
  q.request.data = 2;
  EXPECT_THAT(refusal(q), HasSubstr("a context of 2 ranks"));
  q.request.data = 1;
  q.request.context.ulysses = 4;
  EXPECT_THAT(refusal(q), HasSubstr("4 ranks: 2;"));
}

TEST(Search, FixedValuesThatLeaveNothingAreRefusedWithTheLegalOnes) {
  Question q = question(4);
  q.request.context.ulysses = 3;
  EXPECT_THAT(refusal(q), HasSubstr("ulysses_shards=3 is not possible for 4 ranks"));
  EXPECT_THAT(refusal(q), HasSubstr("legal values: 1, 2, 4"));
  q.request.data = 2;
  EXPECT_THAT(refusal(q), HasSubstr("legal values: 1, 2"));
  q.request = {};
  q.request.context.ulysses = 16;
  q.work.heads = 8;
  EXPECT_THAT(refusal(q), HasSubstr("more than the 8 heads"));
  q.request = {};
  q.request.context.ring = q.request.context.gather = 1;
  q.ranks = 13;
  EXPECT_THAT(refusal(q), HasSubstr("legal values: 13; Ulysses takes at most a rank per head, and there are 8 heads"));
  q.ranks = 4;
  q.request = {};
  q.request.data = 3;
  EXPECT_THAT(refusal(q), HasSubstr("there are 2 branches of guidance here; use 1 or 2"));
  q.request.data = 2;
  q.ranks = 3;
  EXPECT_THAT(refusal(q), HasSubstr("data_parallelism=2 is not possible for 3 ranks"));
  q.request = {};
  q.request.vae_ranks = 5;
  EXPECT_THAT(refusal(q), HasSubstr("vae_parallel=5 must be from 1 to 3"));
  q.request = {};
  q.request.context_ranks = 2;
  EXPECT_THAT(refusal(q), HasSubstr("context_parallelism=2 is not possible for 3 ranks"));
}

// Slow links: one video over one device each keeps all of them busy.
TEST(Search, ThroughputAndCostMayUseFewerRanksForARun) {
  Question q = question(8, machine(8, 1e8));
  q.objective = Objective::kThroughput;
  const Ranking many = search(q);
  EXPECT_LT(many.best()->ranks(), 8);
  EXPECT_EQ(many.best()->configuration.layout.data, many.best()->ranks() > 1 ? 2 : 1);
  EXPECT_NEAR(many.best()->value, many.best()->run_seconds() * many.best()->ranks() / 8, 1e-9);
  q.objective = Objective::kCost;
  q.hardware.price_per_hour = 80;
  const Ranking cheap = search(q);
  EXPECT_NEAR(cheap.best()->value, cheap.best()->run_seconds() * cheap.best()->ranks() * 10 / 3600, 1e-9);
  q.objective = Objective::kLatency;
  EXPECT_EQ(search(q).best()->ranks(), 8);
  EXPECT_EQ(search(q).quickest_run(), nullptr);
}

// Few tokens over late links: a gather waits for one message, an exchange for four, a ring for all hops but the first.
TEST(Search, AGatherIsBestWhereTokensAreFewAndLinksLate) {
  const auto best = [](int64_t tokens, double latency) {
    Question q = question(4, machine(4));
    q.request.data = 1;
    q.work.linear_flop *= static_cast<double>(tokens) / static_cast<double>(q.work.tokens);
    q.work.tokens = tokens;
    q.hardware.links[0].latency = latency;
    return search(q).best()->configuration.layout.context;
  };
  EXPECT_EQ(best(512, 1e-4), (parallel::ContextLayout{.gather = 4}));
  EXPECT_EQ(best(131072, 1e-6).gather, 1);
}

TEST(Search, AGatherIsNotTriedWhereARingOrHeadChunksAreFixed) {
  const auto gathers = [](const parallel::ContextRequest& request) {
    Question q = question(4);
    q.request.context = request;
    const Ranking ranking = search(q);
    return std::any_of(ranking.candidates.begin(), ranking.candidates.end(),
                       [](const Candidate& c) { return c.configuration.layout.context.gather > 1; });
  };
  EXPECT_TRUE(gathers({}));
  EXPECT_TRUE(gathers({.ulysses = 1, .ring = 1}));
  EXPECT_FALSE(gathers({.direction = Direction::kTwoWay}));
  EXPECT_FALSE(gathers({.head_chunks = 2}));
  EXPECT_FALSE(gathers({.gather = 1}));
  Question q = question(3);
  q.request.context = {.ulysses = 1, .ring = 1, .head_chunks = 2};
  EXPECT_THAT(refusal(q), HasSubstr("ulysses_attention_chunks=2 is not possible where every rank gathers"));
}

// Links that cost next to nothing: eight runs of a rank make most videos, and one of eight is the fastest.
TEST(Search, ATieThatIsOverSoonerIsNamed) {
  Question q = question(8, machine(8, 1e15));
  q.objective = Objective::kThroughput;
  const Ranking ranking = search(q);
  ASSERT_NE(ranking.quickest_run(), nullptr);
  EXPECT_EQ(ranking.best()->ranks(), 1);
  EXPECT_EQ(ranking.quickest_run()->ranks(), 8);
  EXPECT_THAT(ranking.quickest_run()->reason, HasSubstr("more time a video, less than the model's error"));
}

// Bounds leave nothing out that belongs into the answer.
TEST(Search, FindsWhatTryingEverythingFinds) {
  for (const double bandwidth : {5e8, 5e9, 1e11}) {
    for (const int ranks : {4, 6, 8}) {
      HardwareProfile hardware = machine(8, bandwidth);
      hardware.links[0].latency = 1e-5;
      // Rings whose wrap crosses a grid, and a bus that all share, change what directions are worth.
      hardware.links[0].kind = ranks == 8 ? LinkKind::kMesh : ranks == 6 ? LinkKind::kBus : LinkKind::kSwitch;
      if (ranks == 8) hardware.links[0].shape = {4, 2};
      hardware.bf16.fixed_max_gain = 1.2;
      hardware.bf16.attention = Curve({{512, 0.3}, {2048, 0.5}});
      hardware.block_q = 512;
      hardware.block_q_choices = {512, 2048};
      Question q = question(ranks, hardware);
      q.work.tokens = 8190;
      const Ranking ranking = search(q);
      ASSERT_NE(ranking.best(), nullptr);
      double fastest = 1e300;
      int simplest = 100;
      std::vector<std::pair<double, int>> all;
      for (const ParallelLayout& split : legal_splits(q, ranks)) {
        for (const Kernel& kernel : kernels(q, split)) {
          for (const ParallelLayout& turned : in_directions(q, split)) {
            for (const ParallelLayout& layout : in_chunks(q, turned)) {
              Configuration c{layout, kernel.softmax, kernel.block_q, 0};
              c.layout.text_ranks = ranks;
              c.layout.vae_ranks = ranking.best()->configuration.layout.vae_ranks;
              const RunPrediction run = simulate_run(q.work, hardware, c);
              all.emplace_back(run.total() - run.load, c.complexity(hardware));
              fastest = std::min(fastest, all.back().first);
            }
          }
        }
      }
      for (const auto& [seconds, complexity] : all)
        if (seconds <= fastest * 1.05) simplest = std::min(simplest, complexity);
      const double slack = hardware.links[0].kind == LinkKind::kBus ? kNoDifference : 1e-9;
      EXPECT_LE(ranking.best()->value, fastest * (1 + slack)) << bandwidth << " " << ranks;
      const Candidate* simpler = ranking.simpler();
      EXPECT_EQ((simpler == nullptr ? ranking.best() : simpler)->complexity, simplest) << bandwidth << " " << ranks;
      double found = 1e300;
      for (const Candidate& c : ranking.candidates)
        if (c.verdict != Verdict::kIllegal) found = std::min(found, c.value);
      EXPECT_NEAR(found, fastest, 1e-9 * fastest) << bandwidth << " " << ranks;
    }
  }
}

HardwareProfile many_nodes(int nodes) {
  HardwareProfile hardware = machine(8 * nodes, 4e11);
  hardware.links[0].members = 8;
  LinkLevel cluster = hardware.links[0];
  cluster.name = "cluster";
  cluster.members = nodes;
  cluster.bandwidth = 5e10;
  cluster.ports = 8;
  hardware.links.push_back(cluster);
  return hardware;
}

Question large_question(int nodes) {
  Question q = question(8 * nodes, many_nodes(nodes));
  q.work.tokens = 75600;
  q.work.heads = 40;
  q.work.layers = 40;
  return q;
}

// Simulating takes seconds for each of many ranks, so what cannot be the best is not.
TEST(Search, Of1024RanksThePrunedAreNotSimulated) {
  const Ranking ranking = search(large_question(128));
  ASSERT_NE(ranking.best(), nullptr);
  EXPECT_TRUE(ranking.best()->simulated);
  EXPECT_TRUE(std::any_of(ranking.candidates.begin(), ranking.candidates.end(),
                          [&](const Candidate& c) { return !c.simulated && c.value > ranking.best()->value; }));
}

// What does not fit is not simulated, and still listed.
TEST(Search, WhatDoesNotFitOfManyRanksIsABound) {
  Question q = large_question(128);
  q.memory_limit = Bytes(7'000'000'000);
  const Ranking ranking = search(q);
  EXPECT_EQ(ranking.best(), nullptr);
  std::set<std::tuple<int, int, int, int>> splits;
  for (const Candidate& c : ranking.candidates) {
    if (c.verdict == Verdict::kIllegal) continue;
    EXPECT_EQ(c.verdict, Verdict::kDoesNotFit);
    EXPECT_FALSE(c.simulated) << c.configuration.text();
    EXPECT_GT(c.time.step.seconds, 0);
    EXPECT_THAT(c.reason, HasSubstr("more than 7.00 GB"));
    const ParallelLayout& layout = c.configuration.layout;
    splits.insert({layout.data, layout.context.ulysses, layout.context.gather, layout.tensor});
  }
  EXPECT_EQ(splits.size(), legal_splits(q, q.ranks).size());
  EXPECT_THAT(ranking.least_that_fits, HasSubstr("never enough, for each of 2048 still needs"));
}

// Of more than the least that is looked at, twice as many are.
TEST(Search, TheLeastThatFitsFollowsTheRanks) {
  Question q = large_question(160);
  q.memory = [](const ParallelLayout& layout, int ranks_here) {
    Workload w = small_memory(layout, ranks_here);
    w.text.workspace = Bytes(16'000'000'000'000) / layout.text_ranks;
    return w;
  };
  q.memory_limit = Bytes(16'500'000'000);
  EXPECT_THAT(search(q).least_that_fits, HasSubstr(" of these devices (16."));
  q.request.text_ranks = 1;
  EXPECT_THAT(search(q).least_that_fits, HasSubstr("never enough"));
}

TEST(Search, BoundsAreNoTies) {
  for (const Objective objective : {Objective::kLatency, Objective::kThroughput}) {
    Question q = large_question(64);
    q.objective = objective;
    q.hardware.model_error = 0.25;
    const Ranking ranking = search(q);
    ASSERT_NE(ranking.best(), nullptr);
    int bounds = 0;
    for (const Candidate& c : ranking.candidates) {
      if (c.simulated || c.verdict == Verdict::kIllegal) continue;
      ++bounds;
      EXPECT_EQ(c.verdict, Verdict::kSlower) << c.reason;
      EXPECT_THAT(c.reason, HasSubstr("at least "));
    }
    EXPECT_GT(bounds, 0) << objective_name(objective);
  }
}

TEST(Search, KeysOfATileAreKept) {
  Question q = question(4);
  q.request.context.ring = 1;
  const double without = search(q).best()->value;
  q.block_kv = 3000;  // no divisor of a block, so that tiles are padded
  const Ranking ranking = search(q);
  for (const Candidate& c : ranking.candidates) {
    if (c.verdict == Verdict::kIllegal) continue;
    EXPECT_EQ(c.configuration.block_kv, 3000);
  }
  EXPECT_GT(ranking.best()->value, without);
}

}  // namespace
}  // namespace zoetrope::planner
