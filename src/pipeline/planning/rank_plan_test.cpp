#include "pipeline/planning/rank_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "base/project_folders.h"
#include "pipeline/planning/layout_question.h"
#include "pipeline/planning/profile_choice.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/planning/weights_to_fit.h"
#include "pipeline/test_model.h"
#include "planner/search.h"

namespace zoetrope::pipeline {
namespace {

using parallel::Direction;
using parallel::Softmax;
using testing::HasSubstr;
using testing::Not;

// Eight devices that compute alike; `bandwidth` of their links in GB/s and `latency` in microseconds are what differs.
std::string machine(double bandwidth, double latency, double read = 5, double fixed_max_gain = 1) {
  return fmt::format(R"(description: for a test
devices: 8
memory: 80
memory_bandwidth: 100
layer_overhead: 0
token_seconds: 0.3
host_read: {2}
devices_per_host: 8
bf16: {{peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5, fixed_max_gain: {3}}}
float32: {{peak: 0.1, gemm: 0.8, attention: 0.5, convolution: 0.5, fixed_max_gain: {3}}}
links:
  - {{name: wire, members: 8, kind: switch, bandwidth: {0}, latency: {1}}}
)",
                     bandwidth, latency, read, fixed_max_gain);
}

class RankPlanTest : public testing::Test {
 protected:
  RankPlanTest() {
    options.height = 80;
    options.width = 80;
    options.num_frames = 17;
    options.num_inference_steps = 4;
    options.prompt = "a cat";
    options.hardware = folder_.write("fast.yml", machine(1000, 1));
  }

  RankPlan choose(int ranks, std::optional<planner::Bytes> available = {}) const {
    const RunPlan plan = plan_run(options, model_);
    const MemoryQuestion memory{options, model_configs(model_)};
    Job job;
    job.ranks = job.ranks_per_host = ranks;
    return choose_run({plan, model_, memory, job, available});
  }

  const TestFolder folder_;
  const ModelFolder model_ = ModelFolder::open(recorded_model("wan21_t2v"));  // four heads
  GenerateOptions options;
};

TEST_F(RankPlanTest, WhatRunsIsWhatIsSaid) {
  for (const int ranks : {1, 2, 3, 4, 6, 7, 8}) {
    const RankPlan planned = choose(ranks);
    EXPECT_EQ(parallel::text(planned.layout, Softmax::kOnline), planned.layout_text);
    EXPECT_EQ(error_of([&] { check(planned.layout, ranks, 4); }), "no error");
    EXPECT_LE(planned.layout.vae_ranks, ranks);
    EXPECT_GT(planned.predicted.step.seconds, 0);
    EXPECT_EQ(planned.predicted.step.ranks.size(), static_cast<size_t>(ranks));
    const std::string words = planned.text();
    EXPECT_THAT(words, HasSubstr("Plan: " + planned.layout_text));
    EXPECT_THAT(words, HasSubstr(" a step (matrix multiplications"));
    EXPECT_THAT(words, HasSubstr(" a rank"));
    EXPECT_THAT(words, HasSubstr("Planned with profile 'fast'"));
    EXPECT_EQ(planned.next.has_value(), ranks > 1) << words;
  }
}

// The branches of guidance meet once a step, the parts of a sequence in every layer.
TEST_F(RankPlanTest, SlowLinksDivideTheBranches) {
  options.hardware = folder_.write("slow.yml", machine(0.01, 1000));
  EXPECT_EQ(choose(2).layout.data, 2);
  EXPECT_EQ(choose(4).layout.data, 2);
  options.guidance_scale = 1;
  EXPECT_EQ(choose(2).layout.data, 1);
  EXPECT_EQ(choose(2).layout_text, "data 1 x context 2 (Ulysses 1 x ring 2)");
  EXPECT_EQ(choose(2).next->layout_text, "data 1 x context 2 (gather 2)");  // the same bytes, none hidden
}

// A gather of four sends more than an exchange, but pays latency once, where an exchange pays it for every message and
// a ring for every hop that takes longer than a block.
TEST_F(RankPlanTest, TheTopologyFollowsTheLinks) {
  options.guidance_scale = 1;
  options.hardware = folder_.write("late.yml", machine(1000, 300));
  EXPECT_EQ(choose(4).layout.context.ulysses, 1);
  options.strategy.attention = "gather";
  EXPECT_EQ(choose(4).layout_text, "data 1 x context 4 (gather 4)");
  options.strategy.attention = "auto";
  options.hardware = folder_.write("narrow.yml", machine(0.02, 0));
  EXPECT_EQ(choose(4).layout.context.ulysses, 4);
}

TEST_F(RankPlanTest, KeysThatAreSetAreNotSearched) {
  options.hardware = folder_.write("slow.yml", machine(0.01, 1000));
  options.data_parallelism = 1;
  EXPECT_EQ(choose(4).layout.data, 1);
  options.strategy.ulysses_shards = 2;
  options.strategy.ring_direction = Direction::kOpen;
  options.strategy.ulysses_attention_chunks = 3;
  options.vae_parallel = 3;
  RankPlan planned = choose(8);
  EXPECT_EQ(planned.layout_text, "data 1 x context 8 (Ulysses 2 x ring 4, ring direction open, 3 head chunks)");
  EXPECT_EQ(planned.layout.vae_ranks, 3);
  EXPECT_FALSE(planned.next.has_value()) << planned.text();
  options.data_parallelism.reset();
  options.context_parallelism = 4;
  planned = choose(8);
  EXPECT_EQ(planned.layout.data, 2);
  EXPECT_EQ(planned.layout.context.ranks(), 4);
}

TEST_F(RankPlanTest, ANameKeepsItsMeaning) {
  for (const auto& [bandwidth, latency] : {std::pair(1000.0, 1.0), std::pair(0.01, 1000.0), std::pair(1000.0, 300.0)}) {
    options.hardware = folder_.write("any.yml", machine(bandwidth, latency));
    options.strategy.attention = "ring";
    const parallel::ContextLayout ring = choose(4).layout.context;
    EXPECT_EQ(ring.ulysses, 1);
    EXPECT_EQ(ring.direction, Direction::kForward);
    options.strategy.attention = "ulysses";
    EXPECT_EQ(choose(4).layout.context.ring, 1);
    options.strategy.attention = "ulysses_ring_custom_bidir";
    EXPECT_EQ(choose(4).layout.context.direction, Direction::kOpen);
    options.strategy.attention = "ulysses_custom_fixed_m";
    EXPECT_THAT(choose(4).layout_text, HasSubstr("softmax fixed_max"));
  }
}

// Eight ranks of Ulysses need eight heads, four for each branch are enough; flash takes a branch each where there are
// two, and gathers where there is one.
TEST_F(RankPlanTest, BranchesAreDividedWhereOnlyThatIsLegal) {
  options.strategy.attention = "ulysses";
  EXPECT_EQ(choose(8).layout.data, 2);
  options.strategy.attention = "flash";
  EXPECT_EQ(choose(2).layout.data, 2);
  options.guidance_scale = 1;
  EXPECT_EQ(choose(2).layout_text, "data 1 x context 2 (gather 2)");
}

TEST_F(RankPlanTest, ImpossibleKeysAreRefusedWithTheLegalOnes) {
  options.strategy.ulysses_shards = 3;
  EXPECT_THAT(error_of([&] { choose(4); }), HasSubstr("legal values: 1, 2, 4"));
  options.strategy.ulysses_shards.reset();
  options.context_parallelism = 3;
  EXPECT_THAT(error_of([&] { choose(4); }), HasSubstr("make 3 ranks, but there are 4"));
  options.context_parallelism = -1;
  options.hardware = "nothing_of_this_name";
  EXPECT_THAT(error_of([&] { choose(4); }), HasSubstr("nothing_of_this_name"));
}

TEST_F(RankPlanTest, DeterministicRunsKeepTheRule) {
  options.strategy.deterministic = true;
  const std::string rule =
      parallel::text(layout_by_rule(options, plan_run(options, model_), model_, 4), Softmax::kOnline);
  EXPECT_EQ(rule, "data 1 x context 4 (Ulysses 4 x ring 1)");
  for (const auto& [bandwidth, latency] : {std::pair(1000.0, 1.0), std::pair(0.01, 1000.0), std::pair(1000.0, 300.0)}) {
    options.hardware = folder_.write("any.yml", machine(bandwidth, latency));
    const RankPlan planned = choose(4);
    EXPECT_EQ(planned.layout_text, rule);
    EXPECT_FALSE(planned.next.has_value());
  }
}

// softmax=auto is what was measured as the faster, except where what was measured must not change a bit.
TEST_F(RankPlanTest, TheFasterSoftmaxIsTaken) {
  options.height = options.width = 640;  // attention is most of a step
  const auto softmax_with = [&](double gain) {
    options.hardware = folder_.write("any.yml", machine(1000, 1, 5, gain));
    const RankPlan planned = choose(4);
    EXPECT_EQ(planned.layout_text.find("fixed_max") != std::string::npos, planned.softmax == Softmax::kFixedMax);
    return planned.softmax;
  };
  EXPECT_EQ(softmax_with(0.97), Softmax::kOnline);
  EXPECT_EQ(softmax_with(1), Softmax::kOnline) << "the plainer where nothing is gained";
  EXPECT_EQ(softmax_with(1.8), Softmax::kFixedMax);
  options.strategy.softmax = Softmax::kOnline;
  EXPECT_EQ(softmax_with(1.8), Softmax::kOnline) << "what a key says";
  options.strategy.softmax.reset();
  options.strategy.attention = "ulysses";
  EXPECT_EQ(softmax_with(1.8), Softmax::kOnline) << "what a name says";
  options.strategy.attention = "auto";
  options.strategy.deterministic = true;
  EXPECT_EQ(softmax_with(1.8), Softmax::kOnline);
}

// Ranks of one process share what is available to it.
TEST_F(RankPlanTest, WhatDoesNotFitIsNotChosen) {
  options.height = options.width = 640;  // activations are more than weights here
  options.guidance_scale = 1;
  options.hardware = folder_.write("slow.yml", machine(0.01, 1000));
  const RankPlan unlimited = choose(4);
  const planner::Bytes needed = unlimited.bytes_per_rank * 4;
  EXPECT_EQ(choose(4, needed).layout_text, unlimited.layout_text);
  const RankPlan less = choose(4, needed - planner::Bytes(4096));
  EXPECT_LT(less.bytes_per_rank * 4, needed);
  // Where nothing fits there is a plan all the same, for admission to refuse.
  const RankPlan nothing = choose(4, planner::Bytes(1000));
  EXPECT_LE(nothing.bytes_per_rank, unlimited.bytes_per_rank);
  EXPECT_FALSE(nothing.next.has_value());
}

// With weights of its own size: twelve layers of 1.3B.
class WeightPlanTest : public RankPlanTest {
 protected:
  WeightPlanTest() { options.guidance_scale = 1; }
  RankPlan choose(const Job& job, std::optional<planner::Bytes> available = {}) const {
    return choose_run({plan_run(options, large_), large_, memory(), job, available});
  }
  MemoryQuestion memory() const { return {options, model_configs(large_)}; }
  static Job processes(int ranks, int hosts) {
    Job job;
    job.ranks = ranks;
    job.hosts = hosts;
    job.ranks_per_host = ranks / hosts;
    job.processes = true;
    return job;
  }

  const ModelFolder large_ = ModelFolder::open_random(std::string(kSourceFolder) + "/configs/wan2.1_t2v_1.3b", 0, 12);
};

// Four processes, each on a host of its own, that can hold less than all weights.
TEST_F(WeightPlanTest, WhatDoesNotFitIsStreamedOrSharedWhicheverIsFaster) {
  Job job = processes(4, 4);
  const TransformerMemory weights = transformer_memory(memory());
  const planner::Bytes less((weights.asked - weights.least) / 2);
  const auto with = [&](double links, double read, bool short_of_memory = true) {
    options.hardware = folder_.write("any.yml", machine(links, 0, read));
    std::optional<planner::Bytes> available;
    if (short_of_memory) available = choose(job).bytes_per_rank - less;
    return choose(job, available);
  };
  EXPECT_EQ(with(1000, 5, false).layout.weight_shards, 1);
  EXPECT_THAT(with(1000, 5, false).text(), Not(HasSubstr("memory is short")));
  const RankPlan shared = with(1000, 0.001), streamed = with(0.001, 10);
  EXPECT_GT(shared.layout.weight_shards, 1) << shared.text();
  EXPECT_THAT(shared.text(), HasSubstr("memory is short of all weights: fsdp_parallelism="));
  EXPECT_THAT(shared.text(), HasSubstr("weight_memory="));
  EXPECT_EQ(streamed.layout.weight_shards, 1) << streamed.text();
  EXPECT_THAT(streamed.text(), HasSubstr("memory is short of all weights: weight_memory="));
  EXPECT_THAT(streamed.text(), HasSubstr(" a step, where tensor_parallelism=2 would take "));
  EXPECT_THAT(streamed.text(), HasSubstr(" and fsdp_parallelism="));
  EXPECT_GT(streamed.predicted.step.critical().weights, 0) << streamed.text();
  // What a key says is done, a cache on disk is read, and threads have one copy.
  options.fsdp_parallelism = 1;
  EXPECT_EQ(with(1000, 0.001).layout.weight_shards, 1);
  options.fsdp_parallelism.reset();
  options.weight_cache = folder_.path().string();
  EXPECT_EQ(with(1000, 0.001).layout.weight_shards, 1);
  options.weight_cache.clear();
  job.processes = false;
  EXPECT_EQ(with(1000, 0.001).layout.weight_shards, 1);
}

// Weights that no step reads again come before those that are kept from one video to the next.
TEST_F(WeightPlanTest, SeveralVideosKeepWhatFits) {
  const Job job = processes(1, 1);
  const auto needed = [&](KeepWeights keep) {
    options.keep_weights = keep;
    return choose(job).bytes_per_rank;
  };
  options.strategy.softmax = Softmax::kOnline;  // another needs other memory
  const planner::Bytes none = needed(KeepWeights::kNone), all = needed(KeepWeights::kAll);
  ASSERT_LT(none + planner::Bytes(10'000'000), all);
  const planner::Bytes between = none + (all - none) / 2;
  EXPECT_THAT(choose(job, between).text(), HasSubstr("weight_memory="));
  options.keeps_what_fits = true;
  const RankPlan fits = choose(job, all), less = choose(job, between), least = choose(job, none - planner::Bytes(1));
  EXPECT_EQ(fits.keep_weights, KeepWeights::kAll);
  EXPECT_THAT(fits.text(), Not(HasSubstr("memory is short")));
  EXPECT_NE(less.keep_weights, KeepWeights::kAll);
  EXPECT_THAT(less.text(), HasSubstr("memory is short of what several videos keep: keep_weights="));
  EXPECT_THAT(less.text(), Not(HasSubstr("weight_memory=")));
  EXPECT_EQ(less.predicted.step.critical().weights, 0);
  EXPECT_EQ(least.keep_weights, KeepWeights::kNone);
  EXPECT_THAT(least.text(), HasSubstr("keep_weights=none is taken; memory is short of all weights: weight_memory="));
  const RankPlan nothing = choose(job, planner::Bytes(1000));
  EXPECT_TRUE(least.fits);
  EXPECT_FALSE(nothing.fits);
  EXPECT_THAT(nothing.text(), Not(HasSubstr("keep_weights=")));
}

// The run on one rank has the same stream, and most tokens.
TEST_F(WeightPlanTest, AStreamFitsTheComparisonWithOneRank) {
  options.height = 720;
  options.width = 1280;
  options.vae_tiling = true;  // else decoding needs most
  options.vae_dtype = DType::kBF16;
  options.strategy.softmax = Softmax::kOnline;
  options.fsdp_parallelism = options.tensor_parallelism = 1;
  const Job job = processes(4, 4);
  MemoryQuestion one = memory();
  const planner::Bytes alone = memory_plan(one).peak().total(), divided = choose(job).bytes_per_rank;
  ASSERT_LT(divided + planner::Bytes(10'000'000), alone);
  const planner::Bytes between = divided + (alone - divided) / 2;
  EXPECT_THAT(choose(job, between).text(), Not(HasSubstr("weight_memory=")));
  options.compare_one_rank = true;
  EXPECT_THAT(choose(job, alone).text(), Not(HasSubstr("weight_memory=")));
  const RankPlan compared = choose(job, between);
  EXPECT_THAT(compared.text(), HasSubstr(fmt::format("weight_memory={} takes", *weight_memory_to_fit(one, between))));
  EXPECT_GT(compared.predicted.step.critical().weights, 0) << compared.text();
  options.fsdp_parallelism = 4;
  EXPECT_THAT(choose(job, between).text(), Not(HasSubstr("weight_memory=")));
}

// The best of several runs side by side is that of the best stream, whatever size of run it is for.
TEST_F(WeightPlanTest, AStreamFitsRunsOfEverySize) {
  constexpr int kRanks = 4;
  options.hardware = folder_.write("any.yml", machine(0.001, 0, 10));  // ranks do best apart
  options.height = 240;
  options.width = 416;
  options.vae_tiling = true;  // else decoding needs most
  options.vae_dtype = DType::kBF16;
  Job job;
  job.ranks = job.ranks_per_host = kRanks;
  const RunPlan plan = plan_run(options, large_);
  MemoryQuestion asked = memory();
  asked.ranks_here = kRanks;
  const planner::HardwareProfile hardware = choose_profile(options.hardware, job).hardware;
  const auto question = [&](planner::Bytes limit) {
    planner::Question q = run_question(plan, large_, asked, kRanks, planner::Objective::kThroughput);
    q.hardware = hardware;
    EXPECT_EQ(q.work.weights.ranks_here, kRanks);
    q.ranks_here = kRanks;
    q.memory_limit = limit;
    return q;
  };
  const double least = static_cast<double>(transformer_memory(asked).least) * 1e-9;
  const planner::Bytes whole = planner::search(question(planner::Bytes::most())).best()->bytes_per_rank;
  int streams = 0;
  for (const int percent : {100, 90, 80, 70, 60, 50, 40}) {  // of what one rank alone needs
    SCOPED_TRACE(percent);
    const planner::Bytes limit = whole * percent / 100;
    asked.options.weight_memory.reset();
    const auto disk = [](planner::Question&, const MemoryQuestion&) { return std::string("a disk"); };
    const WeightsToFit open = weights_to_fit({question(limit), asked, limit * kRanks, false, disk});
    ASSERT_NE(open.ranking.best(), nullptr);
    // Of what was chosen, however many ways were looked at.
    EXPECT_EQ(open.disk_note.empty(), !open.weight_memory) << open.disk_note;
    streams += open.weight_memory ? 1 : 0;
    for (const double factor : {1.1, 1.5, 2.0, 3.0}) {
      asked.options.weight_memory = least * factor;
      const planner::Ranking fixed = planner::search(question(limit));
      if (fixed.best() == nullptr) continue;
      EXPECT_LE(open.ranking.best()->value, fixed.best()->value * 1.0001) << *asked.options.weight_memory;
    }
  }
  EXPECT_GT(streams, 0);
}

// Of the hardware that is named, less is too little.
TEST_F(WeightPlanTest, TheLeastHardwareThatFitsStreams) {
  const MemoryQuestion asked = memory();
  planner::Question q = run_question(plan_run(options, large_), large_, asked, 1);
  q.hardware = choose_profile(options.hardware, processes(1, 1)).hardware;
  const auto with = [&](planner::Bytes limit) {
    q.memory_limit = limit;
    return weights_to_fit({q, asked, limit, true}).ranking;
  };
  const planner::Ranking nothing = with(planner::Bytes(100'000'000));
  ASSERT_EQ(nothing.best(), nullptr);
  const std::string& text = nothing.least_that_fits;
  // "… 1 of 2.34 GB or more each".
  const std::string named = text.substr(0, text.find(" or more each"));
  ASSERT_TRUE(named.ends_with(" GB")) << text;
  const double gigabytes = std::stod(named.substr(named.rfind(" of ") + 4));
  EXPECT_NE(with(planner::Bytes::of_gigabytes(gigabytes * 1.01)).best(), nullptr) << text;
  EXPECT_EQ(with(planner::Bytes::of_gigabytes(gigabytes * 0.95)).best(), nullptr) << text;
}

// Over links that take longer with a layer's weights than with its sums, for few tokens.
TEST_F(WeightPlanTest, LayersAreDividedWhereThatIsFaster) {
  Job job = processes(4, 4);
  options.hardware = folder_.write("any.yml", machine(0.5, 0, 0.001));
  EXPECT_EQ(choose(job).layout.tensor, 1) << choose(job).text();
  const TransformerMemory weights = transformer_memory(memory());
  const planner::Bytes available = choose(job).bytes_per_rank - planner::Bytes((weights.asked - weights.least) / 2);
  const RankPlan divided = choose(job, available);
  EXPECT_GT(divided.layout.tensor, 1) << divided.text();
  EXPECT_EQ(divided.layout.weight_shards, 1);
  EXPECT_LE(divided.bytes_per_rank, available);
  EXPECT_THAT(divided.text(), HasSubstr("memory is short of all weights: tensor_parallelism="));
  EXPECT_THAT(divided.text(), HasSubstr("fsdp_parallelism="));
  EXPECT_GT(divided.predicted.step.critical().tensor, 0);
  // Threads have one copy whatever divides it.
  job.processes = false;
  EXPECT_EQ(choose(job, available).layout.tensor, 1);
}

TEST_F(WeightPlanTest, WhatAKeyTakesOutOfMemoryIsPriced) {
  options.hardware = folder_.write("any.yml", machine(0.001, 0, 0.001));
  const auto waits = [&](const Job& job) { return choose(job).predicted.step.critical().weights; };
  const Job one = processes(1, 1), two = processes(2, 2);
  EXPECT_EQ(waits(one), 0);
  options.weights_in_memory = WeightsInMemory::kAsStored;
  const double as_stored = waits(one);
  EXPECT_GT(as_stored, 0);
  EXPECT_THAT(choose(one).text(), HasSubstr("waiting for weights"));
  options.weights_in_memory = WeightsInMemory::kAuto;
  options.weight_memory = static_cast<double>(transformer_memory(memory()).asked) * 0.7e-9;
  EXPECT_GT(waits(one), 0);
  EXPECT_LT(waits(one), as_stored);
  options.weight_memory.reset();
  options.fsdp_parallelism = 2;
  EXPECT_GT(waits(two), 0);
  EXPECT_EQ(choose(two).layout.weight_shards, 2);
}

// Of what would not fit into each of four processes of a host, a part is enough.
TEST_F(WeightPlanTest, ProcessesOfAHostShareOneCopy) {
  const planner::Bytes apart = choose(processes(4, 4)).bytes_per_rank;
  EXPECT_LT(choose(processes(4, 1)).bytes_per_rank, apart);
  EXPECT_THAT(choose(processes(4, 1), apart - planner::Bytes(100'000'000)).text(), Not(HasSubstr("memory is short")));
}

TEST_F(RankPlanTest, SequencesThatStayWholeArePlannedToo) {
  options.flash_min_seq_length = 100000;
  const RankPlan planned = choose(4);
  EXPECT_FALSE(planned.layout.sharded);
  EXPECT_GT(planned.predicted.step.seconds, 0);
}

TEST_F(RankPlanTest, OneProblemOfAttention) {
  attention::Problem problem;
  problem.batch = 2;
  problem.tokens = 4096;
  problem.heads = 5;
  problem.head_dim = 64;
  Job job;
  job.ranks = job.ranks_per_host = 5;
  const auto plan = [&](const attention::StrategyOptions& keys, double bandwidth, double latency) {
    return choose_attention(problem, keys, folder_.write("any.yml", machine(bandwidth, latency)), job);
  };
  attention::StrategyOptions keys;
  EXPECT_EQ(plan(keys, 1000, 10000).layout.context.ulysses, 1);
  EXPECT_EQ(plan(keys, 0.01, 0).layout.context.ulysses, 5);
  EXPECT_THAT(plan(keys, 0.01, 0).text(), HasSubstr("Plan: Ulysses 5 x ring 1; predicted "));
  EXPECT_THAT(plan(keys, 0.01, 0).text(), Not(HasSubstr("a step")));
  EXPECT_THAT(plan(keys, 1000, 10000).text(), Not(HasSubstr("gather")));  // nothing follows it
  const planner::StepPrediction step = plan(keys, 1000, 10000).predicted.step;
  EXPECT_NEAR(step.critical().total(), step.seconds, 1e-9 * step.seconds);
  keys.attention = "ring";
  EXPECT_EQ(plan(keys, 0.01, 0).layout.context.ulysses, 1);
  keys.attention = "auto";
  keys.deterministic = true;
  EXPECT_EQ(plan(keys, 1000, 10000).layout.context.ulysses, 5);
}

// Two processes may find other profiles: what the first decides is what all do.
TEST(AgreedPlan, IsRankNulls) {
  std::atomic<int> agreed{0};
  comm::run_ranks(3, [&](comm::Communicator& world) {
    const RankPlan planned = agreed_plan(world, [&](const auto&) {
      RankPlan mine;
      mine.layout.data = 7 + world.rank();
      mine.layout.context = {2, 3, Direction::kOpen, 4, 5, {}};
      for (int rank = 0; rank < 30; ++rank) mine.layout.context.shard_weights.push_back(1 + rank + world.rank());
      mine.layout.sharded = world.rank() != 0;
      mine.layout.weight_shards = 6 + world.rank();
      mine.softmax = world.rank() == 0 ? Softmax::kFixedMax : Softmax::kOnline;
      return mine;
    });
    parallel::ParallelLayout expected{.data = 7, .context = {2, 3, Direction::kOpen, 4, 5, {}}};
    for (int rank = 0; rank < 30; ++rank) expected.context.shard_weights.push_back(1 + rank);
    expected.sharded = false;
    expected.weight_shards = 6;
    if (planned.layout == expected && planned.softmax == Softmax::kFixedMax) ++agreed;
  });
  EXPECT_EQ(agreed, 3);
}

TEST(AgreedPlan, AllRanksGiveUpTogether) {
  std::atomic<int> refused{0};
  comm::run_ranks(3, [&](comm::Communicator& world) {
    if (error_of([&] {
          agreed_plan(world, [](const auto&) -> RankPlan { throw Error("hardware=x: is not there"); });
        }) == "hardware=x: is not there")
      ++refused;
  });
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace zoetrope::pipeline
