#include "models/wan/tensor_list.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "io/checkpoint.h"

namespace zoetrope::wan {
namespace {

namespace fs = std::filesystem;

TransformerConfig transformer(int64_t heads, int64_t ffn, int64_t layers, int64_t in = 16, int64_t out = 16) {
  TransformerConfig config;
  config.num_attention_heads = heads;
  config.ffn_dim = ffn;
  config.num_layers = layers;
  config.in_channels = in;
  config.out_channels = out;
  return config;
}

TransformerConfig with_image(TransformerConfig config) {
  config.image_dim = 1280;
  config.added_kv_proj_dim = config.inner_dim();
  return config;
}

TransformerConfig with_vace(TransformerConfig config, int64_t stride) {
  for (int64_t layer = 0; layer < config.num_layers; layer += stride) config.vace_layers.push_back(layer);
  return config;
}

void expect_totals(const TensorList& list, int64_t tensors, int64_t parameters) {
  const TensorTotals sum = totals(list);
  EXPECT_EQ(sum.tensors, tensors);
  EXPECT_EQ(sum.parameters, parameters);
  EXPECT_EQ(sum.bytes(DType::kF32), static_cast<uint64_t>(4 * parameters));
  EXPECT_EQ(sum.bytes(DType::kBF16), static_cast<uint64_t>(2 * parameters));
  std::set<std::string> names;
  for (const auto& spec : list) EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " twice";
}

// The table of wan.md section 8 (counts, parameters) with the published byte sizes of section 1.1.
TEST(TensorList, TextToVideo13B) { expect_totals(transformer_tensors(transformer(12, 8960, 30)), 825, 1'418'996'800); }

// The published file has 1205 MiB in BF16.
TEST(TensorList, ClipVision) {
  const TensorList list = clip_vision_tensors(ClipVisionConfig{});
  expect_totals(list, 8 + 32 * 16, 632'076'800);
  // Without the last layer (4·d² + 2·d·ffn and its vectors), the norm behind it and the projection.
  const int64_t d = 1280, ffn = 5120, layer = 4 * d * d + 2 * d * ffn + 9 * d + ffn;
  expect_totals(clip_vision_tensors_used(ClipVisionConfig{}), 5 + 31 * 16, 632'076'800 - layer - 2 * d - 1024 * d);
}

TEST(TensorList, TextToVideo14B) {
  expect_totals(transformer_tensors(transformer(40, 13824, 40)), 1095, 14'288'491'584);
}

TEST(TensorList, TextToVideoA14BExpert) {
  // The published files have 57 154 077 760 bytes with headers: data 57 153 966 336.
  const auto sum = totals(transformer_tensors(transformer(40, 13824, 40)));
  EXPECT_EQ(sum.bytes(DType::kF32), 57'153'966'336u);
  EXPECT_LT(57'154'077'760u - sum.bytes(DType::kF32), 1095u * 128u + 12u * 64u);  // headers
}

TEST(TensorList, ImageToVideoA14BExpert) {
  expect_totals(transformer_tensors(transformer(40, 13824, 40, 36)), 1095, 14'288'901'184);
}

TEST(TensorList, ImageToVideo14B) {
  expect_totals(transformer_tensors(with_image(transformer(40, 13824, 40, 36))), 1303, 16'394'878'784);
}

TEST(TensorList, FirstLastFrame14B) {
  auto config = with_image(transformer(40, 13824, 40, 36));
  config.pos_embed_seq_len = 514;
  expect_totals(transformer_tensors(config), 1304, 16'395'536'704);
}

TEST(TensorList, TextImageToVideo5B) {
  expect_totals(transformer_tensors(transformer(24, 14336, 30, 48, 48)), 825, 4'999'787'712);
}

TEST(TensorList, Vace13B) {
  expect_totals(transformer_tensors(with_vace(transformer(12, 8960, 30), 2)), 1264, 2'153'972'032);
}

TEST(TensorList, Vace14B) {
  expect_totals(transformer_tensors(with_vace(transformer(40, 13824, 40), 5)), 1331, 17'337'592'896);
}

TEST(TensorList, TextEncoderXxl) {
  const TensorList list = text_encoder_tensors(TextEncoderConfig{});
  expect_totals(list, 242, 5'680'910'336);
  EXPECT_LT(11'361'851'208u - totals(list).bytes(DType::kBF16), 242u * 160u);  // published BF16 size, less headers
}

TEST(TensorList, Vae21) {
  const TensorList list = vae_tensors(VaeConfig{});
  expect_totals(list, 194, 126'892'531);
  EXPECT_LT(507'591'892u - totals(list).bytes(DType::kF32), 194u * 160u);  // published size, less the header
  int64_t decoder = 0;
  for (const auto& spec : list) {
    decoder += spec.name.rfind("decoder.", 0) == 0 || spec.name.rfind("post_quant_conv.", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(decoder, 108);
}

TEST(TensorList, Vae22) {
  VaeConfig config;
  config.base_dim = 160;
  config.decoder_base_dim = 256;
  config.z_dim = 48;
  config.is_residual = true;
  config.in_channels = config.out_channels = 12;
  config.patch_size = 2;
  expect_totals(vae_tensors(config), 196, 704'688'668);
}

TEST(TensorList, Float32Islands) {
  EXPECT_TRUE(is_float32_island("condition_embedder.time_embedder.linear_1.weight"));
  EXPECT_TRUE(is_float32_island("blocks.3.scale_shift_table"));
  EXPECT_TRUE(is_float32_island("scale_shift_table"));
  EXPECT_TRUE(is_float32_island("blocks.0.norm2.bias"));
  EXPECT_FALSE(is_float32_island("condition_embedder.time_proj.weight"));
  EXPECT_FALSE(is_float32_island("blocks.0.attn1.norm_q.weight"));
  EXPECT_FALSE(is_float32_island("condition_embedder.text_embedder.linear_2.weight"));
}

// The list holds exactly what a recorded checkpoint holds, name by name and shape by shape.
void expect_same(const TensorList& list, const io::Checkpoint& checkpoint) {
  std::set<std::string> listed;
  for (const auto& spec : list) {
    listed.insert(spec.name);
    ASSERT_TRUE(checkpoint.contains(spec.name)) << spec.name;
    EXPECT_EQ(checkpoint.info(spec.name).shape, spec.shape) << spec.name;
  }
  for (const auto& name : checkpoint.names()) {
    EXPECT_TRUE(listed.count(name) == 1 || is_ignored_tensor(name)) << name << " is not in the list";
  }
}

TEST(Golden, ListsMatchEveryRecordedCheckpoint) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(ZOETROPE_GOLDEN_DIR) / "pipelines")) {
    SCOPED_TRACE(entry.path().string());
    for (const char* part : {"transformer", "transformer_2"}) {
      const fs::path folder = entry.path() / part;
      if (!fs::exists(folder)) continue;
      expect_same(transformer_tensors(TransformerConfig::load(folder / "config.json")),
                  io::Checkpoint::open(folder, "diffusion_pytorch_model"));
    }
    expect_same(text_encoder_tensors(TextEncoderConfig::load(entry.path() / "text_encoder/config.json")),
                io::Checkpoint::open(entry.path() / "text_encoder", "model"));
    expect_same(vae_tensors(VaeConfig::load(entry.path() / "vae/config.json")),
                io::Checkpoint::open(entry.path() / "vae", "diffusion_pytorch_model"));
    if (fs::exists(entry.path() / "image_encoder")) {
      expect_same(clip_vision_tensors(ClipVisionConfig::load(entry.path() / "image_encoder/config.json")),
                  io::Checkpoint::open(entry.path() / "image_encoder", "model"));
    }
    ++folders;
  }
  EXPECT_GT(folders, 0);
}

TEST(TensorList, WhatElseAClipModelHoldsIsIgnored) {
  for (const char* name : {"vision_model.embeddings.position_ids", "text_model.embeddings.token_embedding.weight",
                           "text_projection.weight", "logit_scale"}) {
    EXPECT_TRUE(is_ignored_tensor(name)) << name;
  }
  EXPECT_FALSE(is_ignored_tensor("vision_model.post_layernorm.weight"));
  EXPECT_FALSE(is_ignored_tensor(kVisualProjection));
}

// ---- the models of configs/ ----

struct Published {
  const char* name;
  const char* pipeline;
  int64_t tensors, parameters;  // of an expert: wan.md section 8
  size_t experts;
  double float32_gigabytes;  // of an expert: sections 1.1 and 8, to two digits behind the point
  double flow_shift;         // stored
  bool looks;                // has an image encoder
};

constexpr Published kPublished[] = {
    {"wan2.1_t2v_1.3b", "WanPipeline", 825, 1'418'996'800, 1, 5.68, 3, false},
    {"wan2.1_t2v_14b", "WanPipeline", 1095, 14'288'491'584, 1, 57.15, 3, false},
    {"wan2.1_i2v_14b_480p", "WanImageToVideoPipeline", 1303, 16'394'878'784, 1, 65.58, 3, true},
    {"wan2.1_i2v_14b_720p", "WanImageToVideoPipeline", 1303, 16'394'878'784, 1, 65.58, 5, true},
    {"wan2.1_flf2v_14b_720p", "WanImageToVideoPipeline", 1304, 16'395'536'704, 1, 65.58, 16, true},
    {"wan2.1_vace_1.3b", "WanVACEPipeline", 1264, 2'153'972'032, 1, 8.62, 3, false},
    {"wan2.1_vace_14b", "WanVACEPipeline", 1331, 17'337'592'896, 1, 69.35, 3, false},
    {"wan2.2_t2v_a14b", "WanPipeline", 1095, 14'288'491'584, 2, 57.15, 3, false},
    {"wan2.2_i2v_a14b", "WanImageToVideoPipeline", 1095, 14'288'901'184, 2, 57.16, 3, false},
    {"wan2.2_ti2v_5b", "WanPipeline", 825, 4'999'787'712, 1, 20.00, 5, false},
};

void expect_published(const Published& model, const fs::path& folder) {
  SCOPED_TRACE(model.name);
  const auto pipeline = PipelineConfig::load(folder / "model_index.json");
  EXPECT_EQ(pipeline.class_name, model.pipeline);
  EXPECT_EQ(pipeline.has("transformer_2"), model.experts == 2);
  EXPECT_EQ(pipeline.has("image_encoder"), model.looks);
  EXPECT_EQ(pipeline.has("image_processor"), model.looks);
  for (const char* expert : {"transformer", "transformer_2"}) {
    if (!pipeline.has(expert)) continue;
    const auto config = TransformerConfig::load(folder / expert / "config.json");
    const TensorList list = transformer_tensors(config);
    expect_totals(list, model.tensors, model.parameters);
    EXPECT_NEAR(static_cast<double>(totals(list).bytes(DType::kF32)) * 1e-9, model.float32_gigabytes, 0.005);
    EXPECT_EQ(config.image_dim.has_value(), model.looks);
  }
  expect_totals(text_encoder_tensors(TextEncoderConfig::load(folder / "text_encoder/config.json")), 242, 5'680'910'336);
  const TensorList vae = vae_tensors(VaeConfig::load(folder / "vae/config.json"));
  if (pipeline.expand_timesteps) expect_totals(vae, 196, 704'688'668);
  else expect_totals(vae, 194, 126'892'531);
  EXPECT_EQ(SchedulerConfigFile::load(folder / "scheduler/scheduler_config.json").flow_shift, model.flow_shift);
  if (!model.looks) return;
  const auto vision = ClipVisionConfig::load(folder / "image_encoder/config.json");
  expect_totals(clip_vision_tensors(vision), 520, 632'076'800);
  const auto processor = ImageProcessorConfig::load(folder / "image_processor/preprocessor_config.json");
  EXPECT_EQ(processor.shortest_edge, vision.image_size);
  EXPECT_EQ(processor.crop, (ImageProcessorConfig::Size{vision.image_size, vision.image_size}));
}

TEST(ShippedConfigs, AreThePublishedModels) {
  const fs::path configs = ZOETROPE_CONFIG_DIR;
  std::set<std::string> shipped, known;
  for (const auto& entry : fs::directory_iterator(configs)) {
    if (fs::exists(entry.path() / "model_index.json")) shipped.insert(entry.path().filename().string());
  }
  for (const Published& model : kPublished) {
    known.insert(model.name);
    expect_published(model, configs / model.name);
    EXPECT_TRUE(fs::exists(configs / (std::string(model.name) + ".yml"))) << model.name;
  }
  EXPECT_EQ(shipped, known);
}

TEST(TensorList, TheTiedEmbeddingIsFoundByEitherName) {
  using Names = std::set<std::string>;
  EXPECT_EQ(stored_name(Names{kEmbedding, kTiedEmbedding}, kEmbedding), kEmbedding);
  EXPECT_EQ(stored_name(Names{kTiedEmbedding}, kEmbedding), kTiedEmbedding);
  EXPECT_EQ(stored_name(Names{}, kEmbedding), kEmbedding);
  EXPECT_EQ(stored_name(Names{kTiedEmbedding}, "encoder.final_layer_norm.weight"), "encoder.final_layer_norm.weight");
}

}  // namespace
}  // namespace zoetrope::wan
