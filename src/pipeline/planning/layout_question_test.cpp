// Keys as a layout by rule, as refusals, and as what the planner is asked.
#include "pipeline/planning/layout_question.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using parallel::Direction;
using parallel::ParallelLayout;
using parallel::Softmax;
using testing::HasSubstr;

class LayoutQuestion : public testing::Test {
 protected:
  LayoutQuestion() {
    options.height = 48;
    options.width = 64;
    options.num_frames = 9;
    options.num_inference_steps = 6;
  }
  ParallelLayout layout(int ranks) const { return layout_by_rule(options, plan_run(options, model), model, ranks); }
  std::string refusal(int ranks) const {
    return error_of([&] { layout(ranks); });
  }
  planner::Question question(int ranks) const {
    return run_question(plan_run(options, model), model, {options, model_configs(model)}, ranks);
  }

  GenerateOptions options;
  const ModelFolder model = ModelFolder::open(recorded_model("wan21_t2v"));  // four heads
};

TEST_F(LayoutQuestion, DegreesFillTheRanks) {
  EXPECT_EQ(layout(6).ranks(), 6);
  EXPECT_EQ(layout(6).data, 1);
  options.data_parallelism = 2;
  EXPECT_EQ(layout(8).data, 2);
  EXPECT_EQ(layout(8).context.ranks(), 4);
  EXPECT_TRUE(layout(8).sharded);
  options.strategy.ulysses_shards = 2;
  EXPECT_EQ(layout(8).context, (parallel::ContextLayout{2, 2}));
  options.data_parallelism = -1;
  options.context_parallelism = 4;
  EXPECT_EQ(layout(8).data, 2);
  options.flash_min_seq_length = 37;  // the run has 36 tokens
  EXPECT_FALSE(layout(8).sharded);
  EXPECT_THAT(parallel::text(layout(8), Softmax::kOnline),
              HasSubstr("context 1 (Ulysses 1 x ring 1), each sequence whole on 4 ranks"));
  options.flash_min_seq_length = 36;
  EXPECT_TRUE(layout(8).sharded);
}

TEST_F(LayoutQuestion, ANamedTopologyKeepsItsRanks) {
  for (const char* name : {"ring", "ulysses", "ulysses_ring"}) {
    options.strategy.attention = name;
    EXPECT_TRUE(question(4).request.one_context) << name;
    EXPECT_EQ(layout(4).data, 1) << name;
  }
  EXPECT_EQ(layout(4).context, (parallel::ContextLayout{2, 2}));
  options.strategy.attention = "ulysses";
  EXPECT_EQ(layout(8).data, 2);  // more than the four heads: ranks are left over
  options.data_parallelism = 2;
  EXPECT_EQ(question(4).request.data, 2);
  options.data_parallelism.reset();
  options.context_parallelism = 2;
  EXPECT_EQ(layout(4).data, 2);
  options.context_parallelism = -1;
  // Where sequences stay whole, no rank would have less to compute.
  options.flash_min_seq_length = 1'000'000;
  EXPECT_FALSE(question(2).request.one_context);
  options.flash_min_seq_length = 0;
  for (const char* name : {"auto", "flash"}) {
    options.strategy.attention = name;
    EXPECT_FALSE(question(2).request.one_context) << name;
  }
}

TEST_F(LayoutQuestion, AListOfWeightsHasTheRanksOfAContext) {
  options.strategy.shard_weights.fixed = {2, 1};
  EXPECT_EQ(layout(2).context.shard_weights, (std::vector<int>{2, 1}));
  EXPECT_EQ(layout(2).data, 1);
  EXPECT_EQ(layout(4).context.shard_weights, (std::vector<int>{2, 1}));
  EXPECT_EQ(layout(4).data, 2);
  EXPECT_EQ(question(4).request.context_ranks, 2);
  EXPECT_EQ(question(4).request.context.shard_weights, (std::vector<int>{2, 1}));
  const auto asked = [&](int ranks) { return error_of([&] { question(ranks); }); };
  for (const int ranks : {1, 3}) {
    const std::string expected = fmt::format("shard_weights=2,1 has 2 numbers, but the context has {} rank", ranks);
    EXPECT_THAT(refusal(ranks), HasSubstr(expected));
    EXPECT_THAT(asked(ranks), HasSubstr(expected));
  }
  const std::string three = "shard_weights=3,2,1 has 3 numbers, but the context has 4 or 2 ranks; give one for each";
  options.strategy.shard_weights.fixed = {3, 2, 1};
  EXPECT_EQ(refusal(4), three);
  EXPECT_EQ(asked(4), three);
  options.strategy.shard_weights.fixed = {2, 1};
  options.guidance_scale = 1;
  const std::string whole = "shard_weights=2,1 has 2 numbers, but the context has 4 ranks; give one for each";
  EXPECT_EQ(refusal(4), whole);
  EXPECT_EQ(asked(4), whole);
  const auto runs_of_two = [&](planner::Objective objective) {
    return run_question(plan_run(options, model), model, {options, model_configs(model)}, 4, objective);
  };
  EXPECT_EQ(runs_of_two(planner::Objective::kThroughput).request.context_ranks, 2);
  options.guidance_scale = 4;
  options.context_parallelism = 4;
  EXPECT_THAT(refusal(4), HasSubstr("shard_weights=2,1 has 2 numbers, but the context has 4 ranks"));
  EXPECT_THAT(asked(4), HasSubstr("shard_weights=2,1 has 2 numbers, but the context has 4 ranks"));
  options.context_parallelism = -1;
  options.strategy.deterministic = true;
  EXPECT_EQ(question(2).request.context.shard_weights, (std::vector<int>{2, 1}));
}

TEST_F(LayoutQuestion, FlashDividesTheBranchesBeforeItGathers) {
  options.strategy.attention = "flash";
  EXPECT_EQ(layout(2).data, 2);
  EXPECT_EQ(layout(2).context, parallel::ContextLayout{});
  EXPECT_EQ(layout(4).context, (parallel::ContextLayout{.gather = 2}));
  EXPECT_EQ(layout(3).context, (parallel::ContextLayout{.gather = 3}));
  options.guidance_scale = 1;
  EXPECT_EQ(layout(2).context, (parallel::ContextLayout{.gather = 2}));
  options.strategy.ulysses_attention_chunks = 2;
  EXPECT_THAT(refusal(2), HasSubstr("ulysses_attention_chunks=2 is not possible where every rank gathers"));
}

TEST_F(LayoutQuestion, ImpossibleDegreesAreRefused) {
  const auto with = [&](std::optional<int64_t> data, int64_t context, int ranks) {
    options.data_parallelism = data;
    options.context_parallelism = context;
    return refusal(ranks);
  };
  EXPECT_THAT(with(2, 3, 8),
              HasSubstr("data_parallelism=2 × context_parallelism=3 × tensor_parallelism=1 make 6 ranks, but there are "
                        "8; one degree may be -1"));
  EXPECT_THAT(with(3, -1, 8), HasSubstr("8 ranks do not divide by the product 3"));
  EXPECT_THAT(with(-1, -1, 8), HasSubstr("data_parallelism and context_parallelism are both -1"));
  EXPECT_THAT(with(0, -1, 8), HasSubstr("data_parallelism=0 is not a degree"));
  EXPECT_THAT(with({}, -3, 8), HasSubstr("context_parallelism=-3 is not a degree"));
  EXPECT_THAT(with(3, -1, 3), HasSubstr("there are two guidance branches; use data_parallelism=1, or two parts"));
  options.guidance_scale = 1;
  EXPECT_THAT(with(2, -1, 2), HasSubstr("there is one branch to compute; use data_parallelism=1"));
  for (const int64_t shards : {0, 3, 16}) {
    options.fsdp_parallelism = shards;
    const std::string why = fmt::format(
        "fsdp_parallelism={} does not divide the 8 ranks; legal values: 1, 2, 4, 8, or "
        "-1 for all",
        shards);
    EXPECT_THAT(with(1, -1, 8), HasSubstr(why));
    EXPECT_THAT(error_of([&] { question(8); }), HasSubstr(why));
  }
  options.fsdp_parallelism.reset();
  options.tensor_parallelism = 3;
  EXPECT_THAT(with(1, -1, 8), HasSubstr("tensor_parallelism=3 does not divide 8 ranks"));
  options.tensor_parallelism = 1;
  options.strategy.ulysses_shards = 0;
  EXPECT_THAT(refusal(4), HasSubstr("ulysses_shards=0 must be at least 1; legal values: 1, 2, 4"));
  options.strategy.ulysses_shards = 3;
  EXPECT_THAT(refusal(4), HasSubstr("legal values: 1, 2, 4"));
}

TEST_F(LayoutQuestion, TensorRanksLeaveTheOthersToDataAndContext) {
  EXPECT_EQ(layout(8).tensor, 1);
  EXPECT_FALSE(question(8).request.tensor);
  options.tensor_parallelism = 2;
  EXPECT_EQ(layout(8).tensor, 2);
  EXPECT_EQ(layout(8).context.ranks() * layout(8).data, 4);
  EXPECT_EQ(layout(8).ranks(), 8);
  EXPECT_EQ(question(8).request.tensor, 2);
  options.fsdp_parallelism = -1;
  EXPECT_EQ(layout(8).weight_shards, 4);
  options.fsdp_parallelism.reset();
  options.tensor_parallelism = -1;
  EXPECT_THAT(refusal(8), HasSubstr("context_parallelism and tensor_parallelism are both -1"));
  options.context_parallelism = 4;
  EXPECT_EQ(layout(8).tensor, 2);
  EXPECT_EQ(question(8).request.tensor, 2);
  options.context_parallelism = 3;
  EXPECT_THAT(refusal(8), HasSubstr("tensor_parallelism=-1 takes what is left, but 8 ranks do not divide by"));
}

TEST_F(LayoutQuestion, WeightsAreSharedByRanksOfOtherAxes) {
  EXPECT_EQ(layout(8).weight_shards, 1);
  EXPECT_FALSE(question(8).request.weight_shards);
  options.fsdp_parallelism = 4;
  EXPECT_EQ(layout(8).weight_shards, 4);
  EXPECT_EQ(layout(8).ranks(), 8);
  EXPECT_EQ(question(8).request.weight_shards, 4);
  options.fsdp_parallelism = -1;
  EXPECT_EQ(layout(8).weight_shards, 8);
  EXPECT_EQ(question(8).request.weight_shards, 8);
}

// The published system's mesh has an axis of its own for them, to whose ranks the branches are dealt.
TEST_F(LayoutQuestion, TheBranchesAreDealtToAnAxisOfWeights) {
  options.data_parallelism = 1;
  options.fsdp_parallelism = 2;
  options.context_parallelism = 4;
  EXPECT_EQ(layout(8).data, 2);
  EXPECT_EQ(layout(8).context.ranks(), 4);
  EXPECT_EQ(layout(8).weight_shards, 2);
  EXPECT_EQ(question(8).request.data, 2);
  EXPECT_EQ(layout(4).data, 1);  // these make the ranks without it
  EXPECT_EQ(layout(4).weight_shards, 2);
  EXPECT_THAT(refusal(12), HasSubstr("make 4 ranks, but there are 12"));
}

TEST_F(LayoutQuestion, WhatKeysSayIsFixedAndTheRestIsOpen) {
  planner::Question q = question(8);
  EXPECT_FALSE(q.request.data || q.request.context_ranks || q.request.context.ulysses || q.request.context.direction ||
               q.request.context.head_chunks || q.request.vae_ranks || q.softmax || q.block_q);
  leave_tiles_to_kernels(q);
  EXPECT_FALSE(q.softmax);
  EXPECT_EQ(q.block_q, 0);
  options.data_parallelism = 2;
  options.vae_parallel = 3;
  options.strategy.ulysses_shards = 2;
  options.strategy.ring_direction = Direction::kOpen;
  options.strategy.softmax = Softmax::kFixedMax;
  options.strategy.flash_block_sizes.block_q = 64;
  q = question(8);
  leave_tiles_to_kernels(q);
  EXPECT_EQ(q.request.data, 2);
  EXPECT_EQ(q.request.vae_ranks, 3);
  EXPECT_EQ(q.request.context.ulysses, 2);
  EXPECT_EQ(q.request.context.direction, Direction::kOpen);
  EXPECT_FALSE(q.request.context.head_chunks);
  EXPECT_EQ(q.softmax, Softmax::kFixedMax);
  EXPECT_EQ(q.block_q, 64);
  options.strategy.deterministic = true;
  options.strategy.softmax.reset();
  EXPECT_EQ(question(8).softmax, Softmax::kOnline);
  const parallel::LayoutRequest all = question(8).request;
  EXPECT_EQ(all.context.head_chunks, 1);
  EXPECT_EQ(all.context.ring, 2);
  EXPECT_EQ(all.text_ranks, 1);
}

}  // namespace
}  // namespace zoetrope::pipeline
