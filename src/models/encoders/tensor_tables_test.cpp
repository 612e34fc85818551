#include "models/encoders/tensor_tables.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace zoetrope::encoders {
namespace {

// The published file has 1205 MiB in BF16.
TEST(TensorTables, ClipVision) {
  const io::TensorTable table = clip_vision_tensors(ClipVisionConfig{});
  EXPECT_EQ(table.size(), 8u + 32u * 16u);
  EXPECT_EQ(io::totals(table).parameters, 632'076'800);
  // Without the last layer (4·d² + 2·d·ffn and its vectors), the norm behind it and the projection.
  const int64_t d = 1280, ffn = 5120, layer = 4 * d * d + 2 * d * ffn + 9 * d + ffn;
  const io::TensorTable used = clip_vision_tensors(ClipVisionConfig{}, ClipTensors::kUsed);
  EXPECT_EQ(used.size(), 5u + 31u * 16u);
  EXPECT_EQ(io::totals(used).parameters, 632'076'800 - layer - 2 * d - 1024 * d);
}

TEST(TensorTables, TextEncoderXxl) {
  const io::TensorTable table = text_encoder_tensors(TextEncoderConfig{});
  EXPECT_EQ(table.size(), 242u);
  EXPECT_EQ(io::totals(table).parameters, 5'680'910'336);
  EXPECT_LT(11'361'851'208u - io::totals(table).bytes(DType::kBF16), 242u * 160u);  // published BF16 size, less headers
}

TEST(TensorTables, TheTextEncoderIsDividedByHeadsAndColumns) {
  const io::TensorTable table = text_encoder_tensors(TextEncoderConfig{});
  const io::TensorIndex index(table);
  const std::string layer = "encoder.block.5.";
  EXPECT_EQ(index[layer + "layer.0.SelfAttention.q.weight"].shard_axis->axis, 0);
  EXPECT_EQ(index[layer + "layer.0.SelfAttention.q.weight"].shard(3, 1), (IndexRange{21 * 64, 42 * 64}));
  EXPECT_EQ(index[layer + "layer.0.SelfAttention.o.weight"].shard_axis->axis, 1);
  EXPECT_EQ(index[layer + "layer.1.DenseReluDense.wi_0.weight"].shard(3, 1), (IndexRange{3413, 6826}));
  EXPECT_EQ(index[layer + "layer.1.DenseReluDense.wo.weight"].shard_axis->axis, 1);
  int divided = 0;
  for (const io::TensorSpec& spec : table) divided += spec.shard_axis ? 1 : 0;
  EXPECT_EQ(divided, 24 * 7);
}

TEST(TensorTables, WhatElseAClipModelHoldsIsIgnored) {
  const auto ignored = clip_vision_files().ignored;
  for (const char* name : {"vision_model.embeddings.position_ids", "text_model.embeddings.token_embedding.weight",
                           "text_projection.weight", "logit_scale"}) {
    EXPECT_TRUE(ignored(name)) << name;
  }
  EXPECT_FALSE(ignored("vision_model.post_layernorm.weight"));
  EXPECT_FALSE(ignored("visual_projection.weight"));
}

TEST(TensorTables, TheTiedEmbeddingIsFoundByEitherName) {
  using Names = std::set<std::string>;
  const io::TensorTable table = text_encoder_tensors(TextEncoderConfig{});
  const io::TensorSpec &embedding = table.front(), &norm = table.back();
  const std::string name = "shared.weight", tied = "encoder.embed_tokens.weight";
  EXPECT_EQ(embedding.name, name);
  EXPECT_EQ(io::stored_name(Names{name, tied}, embedding), name);
  EXPECT_EQ(io::stored_name(Names{tied}, embedding), tied);
  EXPECT_EQ(io::stored_name(Names{}, embedding), name);
  EXPECT_EQ(io::stored_name(Names{tied}, norm), norm.name);
}

}  // namespace
}  // namespace zoetrope::encoders
