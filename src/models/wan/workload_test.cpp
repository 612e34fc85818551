#include "models/wan/workload.h"

#include <gtest/gtest.h>

#include "planner/memory_model.h"

namespace zoetrope::wan {
namespace {

// The published sizes (wan.md section 10).
ModelConfigs model_1_3b() {
  ModelConfigs configs;
  TransformerConfig transformer;
  transformer.num_attention_heads = 12;
  transformer.ffn_dim = 8960;
  transformer.num_layers = 30;
  configs.experts = {transformer};
  return configs;
}

RunSize small_video() {
  RunSize size;
  size.height = 480;
  size.width = 832;
  size.frames = 5;
  return size;
}

TEST(Workload, CountsThePublishedParameters) {
  const planner::Workload w = workload(model_1_3b(), small_video(), {});
  EXPECT_EQ(w.experts.at(0).weights.parameters, 1'418'996'800);
  EXPECT_EQ(w.experts[0].weights.stored.count(), 5'675'987'200);
  EXPECT_EQ(w.vae.weights.parameters, 126'892'531);
  EXPECT_NEAR(static_cast<double>(w.text.weights.parameters), 5.68e9, 0.01e9);
  // bf16 but for the islands: time embedder, modulation tables, the norm before cross-attention.
  EXPECT_GT(w.experts[0].weights.held.count(), 2 * w.experts[0].weights.parameters);
  EXPECT_LT(w.experts[0].weights.held.count(), 2 * w.experts[0].weights.parameters + 20'000'000);
}

TEST(Workload, MoreOfEverythingNeedsMore) {
  const ModelConfigs model = model_1_3b();
  const auto peak = [&](const RunSize& size, const planner::RankUse& use) {
    return planner::memory_model(workload(model, size, use)).peak().total();
  };
  const RunSize size = small_video();
  RunSize longer = size, larger = size, guided = size, exact = size;
  longer.frames = 81;
  larger.height = 720;
  larger.width = 1280;
  guided.prompts = 2;
  exact.transformer = DType::kF32;
  for (const RunSize& more : {longer, larger, guided, exact}) EXPECT_GT(peak(more, {}), peak(size, {}));
  planner::RankUse shared, apart;
  shared.here = 4;
  shared.context = apart.context = {4, 1};
  shared.vae = apart.vae = 4;
  // Where activations make the peak.
  EXPECT_LT(peak(longer, apart), peak(longer, {}));
  EXPECT_LT(peak(longer, shared), peak(longer, {}) + peak(longer, {}) / 4);
}

// The longest video at the largest size that options allow, on the largest model that a config allows.
TEST(Workload, AbsurdSizesDoNotWrapRound) {
  ModelConfigs model;
  TransformerConfig transformer;
  transformer.num_attention_heads = 1024;
  transformer.attention_head_dim = 1024;
  transformer.ffn_dim = transformer.text_dim = int64_t{1} << 20;
  transformer.num_layers = 1000;
  model.experts = {transformer};
  model.text_encoder.d_model = model.text_encoder.d_ff = int64_t{1} << 20;
  RunSize size;
  size.height = size.width = 16384;
  size.frames = 4093;
  size.prompts = 2;
  size.transformer = DType::kF32;
  const planner::MemoryPlan plan = planner::memory_model(workload(model, size, {}));
  for (const planner::MemoryPhase& phase : plan.phases) EXPECT_GT(phase.total().gigabytes(), 1) << phase.name;
  EXPECT_GT(plan.peak().total().gigabytes(), 1e6);
}

}  // namespace
}  // namespace zoetrope::wan
