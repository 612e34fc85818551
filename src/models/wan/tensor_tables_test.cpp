#include "models/wan/tensor_tables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "base/project_folders.h"
#include "io/weights/checkpoint.h"
#include "io/weights/formula_testing.h"
#include "models/encoders/tensor_tables.h"

namespace zoetrope::wan {
namespace {

namespace fs = std::filesystem;

void expect_totals(const io::TensorTable& table, int64_t tensors, int64_t parameters) {
  const io::TensorTotals sum = io::totals(table);
  EXPECT_EQ(sum.tensors, tensors);
  EXPECT_EQ(sum.parameters, parameters);
  EXPECT_EQ(sum.bytes(DType::kF32), static_cast<uint64_t>(4 * parameters));
  EXPECT_EQ(sum.bytes(DType::kBF16), static_cast<uint64_t>(2 * parameters));
  std::set<std::string> names;
  for (const auto& spec : table) EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " twice";
}

// Sizes of published files against wan.md section 1.1; counts of all published models are below.

TEST(TensorTables, TextToVideoA14BExpert) {
  // The published files have 57 154 077 760 bytes with headers: data 57 153 966 336.
  const auto sum = io::totals(transformer_tensors(TransformerConfig{}));
  EXPECT_EQ(sum.bytes(DType::kF32), 57'153'966'336u);
  EXPECT_LT(57'154'077'760u - sum.bytes(DType::kF32), 1095u * 128u + 12u * 64u);  // headers
}

TEST(TensorTables, Vae21) {
  const io::TensorTable table = vae_tensors(VaeConfig{});
  expect_totals(table, 194, 126'892'531);
  EXPECT_LT(507'591'892u - io::totals(table).bytes(DType::kF32), 194u * 160u);  // published size, less the header
  EXPECT_EQ(vae_decoder_tensors(VaeConfig{}).size(), 108u);

  VaeConfig tiny;
  tiny.base_dim = tiny.decoder_base_dim = 3;
  tiny.dim_mult = {1, 1, 1, 1};
  tiny.num_res_blocks = 1;
  expect_totals(vae_tensors(tiny), 146, 13'861);
}

// ---- how ranks divide them ----

// Of every attention the heads, of the feed-forward its width; what is added up has all outputs, and the parts together
// are the whole.
TEST(TensorTables, RanksDivideHeadsAndFeedForward) {
  TransformerConfig config;  // 40 heads of 128, 13 824
  config.added_kv_proj_dim = config.inner_dim();
  config.num_layers = 1;
  const io::TensorTable whole = transformer_tensors(config);
  for (const int parts : {2, 5, 8}) {
    int64_t hidden = 0;
    for (int part = 0; part < parts; ++part) {
      const io::TensorTable table = io::part_of(whole, parts, part);
      const io::TensorIndex index(table);
      const auto shape = [&](const std::string& name) { return index["blocks.0." + name].shape; };
      const int64_t d = config.inner_dim(), heads = d / parts, wide = shape("ffn.net.0.proj.weight")[0];
      for (const char* name : {"attn1.to_q", "attn1.to_k", "attn1.to_v", "attn2.to_q", "attn2.to_k", "attn2.to_v",
                               "attn2.add_k_proj", "attn2.add_v_proj"}) {
        EXPECT_EQ(shape(std::string(name) + ".weight"), (Shape{heads, d})) << name;
        EXPECT_EQ(shape(std::string(name) + ".bias"), (Shape{heads})) << name;
      }
      for (const char* name : {"attn1.norm_q", "attn1.norm_k", "attn2.norm_q", "attn2.norm_k", "attn2.norm_added_k"})
        EXPECT_EQ(shape(std::string(name) + ".weight"), (Shape{heads})) << name;
      for (const char* name : {"attn1.to_out.0", "attn2.to_out.0"}) {
        EXPECT_EQ(shape(std::string(name) + ".weight"), (Shape{d, heads})) << name;
        EXPECT_EQ(shape(std::string(name) + ".bias"), (Shape{d})) << name;
      }
      EXPECT_EQ(wide % 64, 0);
      EXPECT_EQ(shape("ffn.net.0.proj.bias"), (Shape{wide}));
      EXPECT_EQ(shape("ffn.net.2.weight"), (Shape{d, wide}));
      EXPECT_EQ(shape("norm2.weight"), (Shape{d}));
      EXPECT_EQ(shape("scale_shift_table"), (Shape{1, 6, d}));
      hidden += wide;
    }
    EXPECT_EQ(hidden, config.ffn_dim);
  }
}

TEST(TensorTables, EveryPartOfANarrowFeedForwardHasSome) {
  EXPECT_EQ(hidden_unit(8960), 64);
  EXPECT_EQ(hidden_unit(64), 1);
  EXPECT_EQ(hidden_unit(72), 1);
  EXPECT_EQ(hidden_unit(1024), 16);
}

// ---- what the tensors are ----

// A transformer with everything that any of the family has.
TransformerConfig everything() {
  TransformerConfig config;
  config.num_layers = 30;
  config.image_dim = 1280;
  config.added_kv_proj_dim = config.inner_dim();
  config.pos_embed_seq_len = 514;
  config.vace_layers = {0, 15};
  return config;
}

TEST(TensorTables, Roles) {
  using enum io::TensorRole;
  const io::TensorTable transformer = transformer_tensors(everything());
  const io::TensorTable text = encoders::text_encoder_tensors(encoders::TextEncoderConfig{});
  const io::TensorTable vae = vae_tensors(VaeConfig{});
  const io::TensorTable clip = encoders::clip_vision_tensors(encoders::ClipVisionConfig{});
  struct Expected {
    const io::TensorTable& table;
    const char* name;
    io::TensorRole role;
  };
  const Expected sample[] = {
      {transformer, "patch_embedding.weight", kConvolution},
      {transformer, "vace_patch_embedding.bias", kBias},
      {transformer, "condition_embedder.time_proj.weight", kMatrix},
      {transformer, "condition_embedder.image_embedder.pos_embed", kTable},
      {transformer, "condition_embedder.image_embedder.norm1.weight", kNorm},
      {transformer, "blocks.29.scale_shift_table", kModulation},
      {transformer, "blocks.0.attn1.norm_q.weight", kNorm},
      {transformer, "blocks.0.attn2.add_k_proj.weight", kMatrix},
      {transformer, "blocks.0.norm2.bias", kBias},
      {transformer, "vace_blocks.1.proj_out.weight", kMatrix},
      {transformer, "scale_shift_table", kModulation},
      {text, "shared.weight", kTable},
      {text, "encoder.block.23.layer.0.SelfAttention.relative_attention_bias.weight", kTable},
      {text, "encoder.block.0.layer.0.SelfAttention.o.weight", kMatrix},
      {text, "encoder.block.0.layer.1.DenseReluDense.wi_1.weight", kMatrix},
      {text, "encoder.final_layer_norm.weight", kNorm},
      {vae, "encoder.conv_in.weight", kConvolution},
      {vae, "decoder.mid_block.attentions.0.to_qkv.weight", kConvolution},
      {vae, "decoder.up_blocks.0.resnets.0.norm1.gamma", kNorm},
      {vae, "quant_conv.bias", kBias},
      {clip, "vision_model.embeddings.class_embedding", kTable},
      {clip, "vision_model.embeddings.patch_embedding.weight", kConvolution},
      {clip, "vision_model.embeddings.position_embedding.weight", kTable},
      {clip, "vision_model.encoder.layers.31.mlp.fc1.weight", kMatrix},
      {clip, "vision_model.post_layernorm.bias", kBias},
      {clip, "visual_projection.weight", kMatrix},
  };
  for (const Expected& e : sample) EXPECT_EQ(io::TensorIndex(e.table)[e.name].role, e.role) << e.name;

  // A role says how many axes there are.
  for (const io::TensorTable& table : {transformer, text, vae, clip}) {
    for (const io::TensorSpec& spec : table) {
      const int rank = spec.shape.rank();
      const bool fits = spec.role == kMatrix        ? rank == 2
                        : spec.role == kConvolution ? rank >= 4
                        : spec.role == kModulation  ? rank == 3
                        : spec.role == kBias        ? rank == 1
                        : spec.role == kNorm        ? spec.shape.size() == spec.shape[0]
                                                    : rank <= 3;
      EXPECT_TRUE(fits) << spec.name << " " << spec.shape.to_string();
    }
  }
}

// wan.md section 2.9: those with a dotted component "time_embedder", "scale_shift_table", "norm1", "norm2" or "norm3".
TEST(TensorTables, KeptInFloat32) {
  const std::set<std::string> components{"time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"};
  int kept = 0;
  for (const io::TensorSpec& spec : transformer_tensors(everything())) {
    bool expected = false;
    std::istringstream name(spec.name);
    for (std::string component; std::getline(name, component, '.');) expected |= components.count(component) == 1;
    EXPECT_EQ(spec.keep_float32, expected) << spec.name;
    EXPECT_EQ(spec.dtype(DType::kBF16), expected ? DType::kF32 : DType::kBF16) << spec.name;
    kept += spec.keep_float32 ? 1 : 0;
  }
  // The time embedder's four, the image embedder's norms, modulation and cross-attention's norm of 32 blocks, the head.
  EXPECT_EQ(kept, 4 + 4 + 32 * 3 + 1);
}

// The matrices that a forward multiplies tokens with, of the blocks that are named; in a model in float32 none.
TEST(TensorTables, BlocksInInt8) {
  const TransformerConfig config = everything().with_int8("1-2");
  std::set<std::string> matrices;
  for (const io::TensorSpec& spec : transformer_tensors(config)) {
    EXPECT_EQ(spec.packed_dtype(DType::kF32), DType::kF32) << spec.name;
    EXPECT_EQ(spec.packed_dtype(DType::kBF16), spec.int8 ? DType::kI8 : spec.dtype(DType::kBF16)) << spec.name;
    if (spec.int8) matrices.insert(spec.name);
  }
  std::set<std::string> expected;
  for (const char* block : {"blocks.1.", "blocks.2."})
    for (const char* matrix : {"attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q",
                               "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2"})
      expected.insert(fmt::format("{}{}.weight", block, matrix));
  EXPECT_EQ(matrices, expected);
}

TEST(TensorTables, OriginalNames) {
  const io::TensorTable table = transformer_tensors(everything());
  const io::TensorIndex index(table);
  const std::pair<const char*, const char*> names[] = {
      {"patch_embedding.weight", "patch_embedding.weight"},
      {"condition_embedder.time_embedder.linear_2.bias", "time_embedding.2.bias"},
      {"condition_embedder.time_proj.weight", "time_projection.1.weight"},
      {"condition_embedder.text_embedder.linear_1.weight", "text_embedding.0.weight"},
      {"condition_embedder.image_embedder.ff.net.2.weight", "img_emb.proj.3.weight"},
      {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
      {"blocks.7.scale_shift_table", "blocks.7.modulation"},
      {"blocks.7.attn1.to_out.0.weight", "blocks.7.self_attn.o.weight"},
      {"blocks.7.attn2.norm_added_k.weight", "blocks.7.cross_attn.norm_k_img.weight"},
      {"blocks.7.attn2.norm_q.weight", "blocks.7.cross_attn.norm_q.weight"},
      {"blocks.7.norm2.weight", "blocks.7.norm3.weight"},
      {"blocks.7.ffn.net.0.proj.bias", "blocks.7.ffn.0.bias"},
      {"vace_blocks.0.proj_in.weight", "vace_blocks.0.before_proj.weight"},
      {"vace_blocks.1.proj_out.weight", "vace_blocks.1.after_proj.weight"},
      {"proj_out.weight", "head.head.weight"},
      {"scale_shift_table", "head.modulation"},
  };
  for (const auto& [name, original] : names) {
    EXPECT_EQ(index[name].name_in(io::NamingScheme::kOriginal), original);
  }
}

// ---- recorded checkpoints ----

// The table holds exactly what a recorded checkpoint holds, name by name and shape by shape.
bool is_ignored(const std::string& name) {
  for (const io::FileRules& rules :
       {transformer_files(), encoders::text_encoder_files(), encoders::clip_vision_files()})
    if (rules.ignored(name)) return true;
  return false;
}

void expect_same(const io::TensorTable& table, const io::WeightSource& recorded) {
  const io::TensorDefects defects = io::tensor_defects(recorded, table);
  EXPECT_TRUE(defects.none()) << recorded.where({});
  std::set<std::string> names;
  for (const io::TensorSpec& spec : table) names.insert(io::stored_name(recorded, spec));
  for (const std::string& name : recorded.names()) {
    EXPECT_TRUE(names.contains(name) || is_ignored(name)) << name << " is not in the table";
  }
}

void expect_same(const io::TensorTable& table, const fs::path& folder, const char* stem) {
  SCOPED_TRACE(folder.string());
  expect_same(table, *io::checkpoint_source(io::Checkpoint::open(folder, stem)));
}

TEST(Golden, TablesMatchEveryRecordedCheckpoint) {
  constexpr const char *kDiffusers = "diffusion_pytorch_model", *kTransformers = "model";
  const fs::path golden = kGoldenFolder;
  std::set<std::string> components;
  for (const auto& config : fs::recursive_directory_iterator(golden)) {
    if (config.path().filename() != "config.json") continue;
    const fs::path folder = config.path().parent_path();
    const std::string component = folder.filename().string();
    components.insert(component);
    if (component == "text_encoder") {
      expect_same(encoders::text_encoder_tensors(encoders::TextEncoderConfig::load(config)), folder, kTransformers);
    } else if (component == "image_encoder") {
      const auto pipeline = PipelineConfig::load(folder.parent_path() / "model_index.json");
      const bool projects = pipeline.components.at(component).class_name == "CLIPVisionModelWithProjection";
      const auto which = projects ? encoders::ClipTensors::kAll : encoders::ClipTensors::kTower;
      expect_same(encoders::clip_vision_tensors(encoders::ClipVisionConfig::load(config), which), folder,
                  kTransformers);
    } else if (component == "vae") {
      expect_same(vae_tensors(VaeConfig::load(config)), folder, kDiffusers);
    } else {
      const io::TensorTable table = transformer_tensors(TransformerConfig::load(config));
      const fs::path formulas = folder / "weights.json";
      const bool has_formulas = fs::exists(formulas);
      if (has_formulas) expect_same(table, *io::procedural_source(formulas));
      const bool has_shards = fs::exists(folder / (std::string(kDiffusers) + ".safetensors.index.json"));
      if (!has_formulas || has_shards) expect_same(table, folder, kDiffusers);
    }
  }
  EXPECT_EQ(components,
            (std::set<std::string>{"image_encoder", "text_encoder", "transformer", "transformer_2", "vae"}));
}

// ---- the models of configs/ ----

struct Published {
  const char* name;
  const char* pipeline;
  int64_t tensors, parameters;  // of an expert: wan.md section 8
  size_t experts;
  double float32_gigabytes;  // of an expert: wan.md sections 1.1 and 8, to two digits behind the point
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
    {"wan2.2_animate_14b", "WanAnimatePipeline", 1443, 17'274'816'884, 1, 69.10, 5, true},
    {"wan2.2_vace_fun_a14b", "WanVACEPipeline", 1331, 17'337'592'896, 2, 69.35, 3, false},
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
    const io::TensorTable table = transformer_tensors(config);
    expect_totals(table, model.tensors, model.parameters);
    EXPECT_NEAR(static_cast<double>(io::totals(table).bytes(DType::kF32)) * 1e-9, model.float32_gigabytes, 0.005);
    EXPECT_EQ(config.image_dim.has_value(), model.looks);
  }
  expect_totals(encoders::text_encoder_tensors(encoders::TextEncoderConfig::load(folder / "text_encoder/config.json")),
                242, 5'680'910'336);
  const io::TensorTable vae = vae_tensors(VaeConfig::load(folder / "vae/config.json"));
  if (pipeline.expand_timesteps) expect_totals(vae, 196, 704'688'668);
  else expect_totals(vae, 194, 126'892'531);
  EXPECT_EQ(SchedulerConfigFile::load(folder / "scheduler/scheduler_config.json").flow_shift, model.flow_shift);
  if (!model.looks) return;
  const auto vision = encoders::ClipVisionConfig::load(folder / "image_encoder/config.json");
  expect_totals(encoders::clip_vision_tensors(vision), 520, 632'076'800);
  const auto processor = encoders::ImageProcessorConfig::load(folder / "image_processor/preprocessor_config.json");
  EXPECT_EQ(processor.shortest_edge, vision.image_size);
  EXPECT_EQ(processor.crop, (encoders::ImageProcessorConfig::Size{vision.image_size, vision.image_size}));
}

TEST(ShippedConfigs, AreThePublishedModels) {
  const fs::path configs = fs::path(kSourceFolder) / "configs";
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

}  // namespace
}  // namespace zoetrope::wan
