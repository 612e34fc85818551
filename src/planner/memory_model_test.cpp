#include "planner/memory_model.h"

#include <gtest/gtest.h>

namespace zoetrope::planner {
namespace {

constexpr int64_t kMega = 1'000'000;
Bytes mega(int64_t count) { return Bytes(count * kMega); }

// Every number different, so that one in a wrong place shows.
Workload example() {
  Workload w;
  w.program = mega(50);
  w.per_rank = mega(1);
  w.text.weights.in_flight = mega(800);
  w.text.workspace = mega(7);
  Workload::Expert expert;
  expert.name = "transformer";
  expert.weights.resident = mega(3000);
  expert.weights.in_flight = mega(110);
  expert.context = mega(300);
  expert.context_making = mega(60);
  expert.workspace = mega(200);
  w.experts = {expert};
  w.attention = {.batch = 1, .tokens = 1000, .heads = 4, .head_dim = 16, .element_bytes = 4};
  w.kernel_scratch = mega(9);
  w.step = mega(5);
  w.vae.weights.resident = mega(290);
  w.vae.weights.in_flight = mega(20);
  w.vae.workspace = mega(1900);
  w.vae.output = mega(30);
  w.kept.steps = mega(40);
  w.kept.frames = mega(400);
  return w;
}

const MemoryPhase& phase(const MemoryPlan& plan, const std::string& name) {
  for (const MemoryPhase& phase : plan.phases)
    if (phase.name == name) return phase;
  ADD_FAILURE() << name;
  return plan.phases.front();
}

// q, k and v of 1000 tokens, 4 heads of 16, float32.
constexpr int64_t kAttention = 3 * 1000 * 4 * 16 * 4;

TEST(MemoryModel, AddsWhatIsHeldTogether) {
  const MemoryPlan plan = memory_model(example());
  EXPECT_EQ(phase(plan, "text encoder").total(), mega(50 + 1 + 800 + 7));
  EXPECT_EQ(phase(plan, "load transformer").total(), mega(50 + 1 + 3000 + 5 + 110));
  EXPECT_EQ(phase(plan, "prompt of transformer").total(), mega(50 + 1 + 3000 + 5 + 300 + 60));
  EXPECT_EQ(phase(plan, "denoise with transformer").total(),
            mega(50 + 1 + 40 + 3000 + 5 + 300 + 200 + 9) + Bytes(kAttention));
  EXPECT_EQ(phase(plan, "load VAE").total(), mega(50 + 1 + 40 + 290 + 20));
  EXPECT_EQ(phase(plan, "VAE decode").total(), mega(50 + 1 + 40 + 290 + 1900 + 30 + 400));
  EXPECT_EQ(plan.peak().name, "denoise with transformer");
  EXPECT_EQ(plan.peak_of(kVae), mega(2711));
  EXPECT_EQ(plan.peak().items.front().name, "weights");
  EXPECT_NE(plan.peak().text().find("weights 3.00 GB, prompt keys and values 0.30 GB"), std::string::npos);
}

TEST(MemoryModel, CountsTheProcessWithTheLargestShards) {
  const auto denoising = [](const std::vector<int>& weights, int ranks_here) {
    Workload w = example();
    w.layout.context.ring = static_cast<int>(weights.size());
    w.layout.context.shard_weights = weights;
    w.ranks_here = ranks_here;
    return phase(memory_model(w), "denoise with transformer").total();
  };
  EXPECT_EQ(denoising({1, 3}, 1), denoising({3, 1}, 1));
  EXPECT_GT(denoising({1, 3}, 1), denoising({1, 1}, 1));
  EXPECT_EQ(denoising({1, 2, 3, 4}, 2), denoising({4, 3, 2, 1}, 2));
  EXPECT_GT(denoising({1, 2, 3, 4}, 2), denoising({1, 3, 4, 2}, 2));
}

TEST(MemoryModel, ConditionsAreMadeBeforeDenoisingAndStayThroughIt) {
  EXPECT_EQ(memory_model(example()).peak_of(kConditions), Bytes()) << "nothing is conditioned on";
  Workload w = example();
  w.inputs = mega(11);
  w.conditions.image_weights.in_flight = mega(60);
  w.conditions.image_workspace = mega(13);
  w.conditions.weights.resident = mega(200);
  w.conditions.weights.in_flight = mega(17);
  w.conditions.workspace = mega(1500);
  w.conditions.making = mega(19);
  w.conditions.made = mega(23);
  const MemoryPlan plan = memory_model(w);
  EXPECT_EQ(phase(plan, "image encoder").total(), mega(50 + 1 + 11 + 60 + 13));
  EXPECT_EQ(phase(plan, "load VAE encoder").total(), mega(50 + 1 + 11 + 200 + 17));
  EXPECT_EQ(phase(plan, "encode conditions").total(), mega(50 + 1 + 11 + 200 + 1500 + 19 + 23));
  EXPECT_EQ(phase(plan, "denoise with transformer").total(),
            mega(50 + 1 + 11 + 40 + 3000 + 23 + 5 + 300 + 200 + 9) + Bytes(kAttention));
  EXPECT_EQ(phase(plan, "VAE decode").total(), mega(50 + 1 + 11 + 40 + 290 + 1900 + 30 + 400));
  EXPECT_EQ(plan.peak_of(kConditions), mega(1804));
  // Those that share a frame's rows hold a part of it each, and all of them what was made.
  w.ranks_here = 4;
  w.layout.context = {4, 1};
  w.layout.vae_ranks = 2;
  EXPECT_EQ(phase(memory_model(w), "encode conditions").total(), mega(50 + 4 + 11 + 200 + 2 * 1500 + 4 * (19 + 23)));
}

TEST(MemoryModel, RanksOfAProcessShareWeightsAndPrompts) {
  Workload w = example();
  w.ranks_here = 4;
  w.layout.data = 2;
  w.layout.context = {2, 1};
  w.layout.vae_ranks = 4;
  const MemoryPlan four = memory_model(w);
  const MemoryPhase& denoise = phase(four, "denoise with transformer");
  // Two data coordinates have prompts of their own; workspace, buffers and latents are each rank's. A Ulysses rank
  // holds q, k, v of all tokens and half the heads, and what it sends: q, k, v of half the tokens and half the heads.
  const int64_t attention = 4 * (kAttention / 2 + kAttention / 4);
  EXPECT_EQ(denoise.total(), mega(50 + 4 + 40 + 3000 + 4 * 5 + 2 * 300 + 4 * 200 + 4 * 9) + Bytes(attention));
  EXPECT_EQ(phase(four, "VAE decode").total(), mega(50 + 4 + 40 + 290 + 4 * 1900 + 30 + 400));
  // As processes each has weights of its own, and is one rank.
  w.ranks_here = 1;
  EXPECT_EQ(phase(memory_model(w), "VAE decode").total(), mega(2711));
}

TEST(MemoryModel, OneOfTwoExpertsIsResident) {
  Workload w = example();
  w.experts.push_back(w.experts.front());
  w.experts[1].name = "transformer_2";
  const MemoryPlan plan = memory_model(w);
  EXPECT_EQ(phase(plan, "denoise with transformer").total(), phase(plan, "denoise with transformer_2").total());
  // While the second is read the first's buffers are there, its weights are not.
  EXPECT_EQ(phase(plan, "load transformer_2").total(), mega(50 + 1 + 40 + 3000 + 5 + 110 + 9) + Bytes(kAttention));
}

TEST(MemoryModel, WhatSegmentsKeepStaysWhileLaterOnesAreMade) {
  Workload w = example();
  w.conditions.workspace = mega(1500);
  const MemoryPlan one = memory_model(w);
  w.segments = 3;
  const MemoryPlan three = memory_model(w);
  const auto more = [&](const char* name) { return phase(three, name).total() - phase(one, name).total(); };
  EXPECT_EQ(more("text encoder"), Bytes());
  // Weights stay between segments, too.
  EXPECT_EQ(more("encode conditions"), mega(2 * (40 + 400) + 3000));
  EXPECT_EQ(more("load transformer"), mega(2 * (40 + 400)));
  EXPECT_EQ(more("denoise with transformer"), mega(2 * (40 + 400)));
  EXPECT_EQ(more("VAE decode"), mega(2 * (40 + 400) + 3000));
}

TEST(MemoryModel, TheVideosEncoderStaysFromTheFirstDecodedSegment) {
  Workload w = example();
  const auto with_encoder = [&](const char* name) {
    w.vae.video_encoder = mega(100);
    const Bytes with = phase(memory_model(w), name).total();
    w.vae.video_encoder = Bytes();
    return with - phase(memory_model(w), name).total();
  };
  EXPECT_EQ(with_encoder("denoise with transformer"), Bytes());
  EXPECT_EQ(with_encoder("VAE decode"), mega(100));
  w.segments = 2;
  EXPECT_EQ(with_encoder("text encoder"), Bytes());
  EXPECT_EQ(with_encoder("denoise with transformer"), mega(100));
}

TEST(MemoryModel, AbsurdSizesStayTooMuch) {
  Workload w = example();
  w.experts[0].workspace = Bytes(INT64_MAX / 2);
  w.ranks_here = 64;
  w.layout.context = {1, 64};
  EXPECT_EQ(memory_model(w).peak().total(), Bytes::most());
  EXPECT_EQ(Bytes(-5).count(), 0);
  EXPECT_EQ(Bytes(5) - Bytes(6), Bytes());
  EXPECT_EQ(Bytes(int64_t{1} << 62) * 4, Bytes::most());
}

// One rank of two on a ring: its own half of q, k and v; two slots for the other's half of k and v, of which one step
// uses one; the state of its rows.
TEST(AttentionMemory, CountsRingBuffersAndState) {
  const parallel::Sizes sizes{.batch = 1, .tokens = 1000, .heads = 4, .head_dim = 16, .element_bytes = 4};
  const int64_t state = 500 * 4 * (16 + 2) * 4;
  EXPECT_EQ(attention_workspace(sizes, {.ring = 2}, parallel::Softmax::kOnline, 0),
            Bytes(kAttention / 2 + kAttention / 3 + state));
}

// In int8 a key of 16 has 20 bytes: the own block and the slot. The own keys, or the block that is computed with, are
// wide.
TEST(AttentionMemory, CountsNarrowedKeysAndTheWideBlock) {
  parallel::Sizes sizes{.batch = 1, .tokens = 1000, .heads = 4, .head_dim = 16, .element_bytes = 4};
  sizes.kv_vector_bytes = 20;
  const int64_t state = 500 * 4 * (16 + 2) * 4, narrow = 500 * 2 * 4 * 20, wide = 500 * 2 * 4 * 16 * 4;
  EXPECT_EQ(attention_workspace(sizes, {.ring = 2}, parallel::Softmax::kOnline, 0),
            Bytes(kAttention / 6 + 2 * narrow + wide + state));
}

}  // namespace
}  // namespace zoetrope::planner
