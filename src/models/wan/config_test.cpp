#include "models/wan/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/project_folders.h"
#include "models/encoders/config.h"
#include "models/testing/refusals.h"

namespace zoetrope::wan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using refusals::expect_quantized_refused;
using refusals::expect_refused;
using refusals::expect_required;
using refusals::parse;
using refusals::refusal;
using refusals::refusal_with;

const fs::path kPipelines = fs::path(kGoldenFolder) / "pipelines";

json transformer_json() {
  return {{"_class_name", "WanTransformer3DModel"},
          {"_diffusers_version", "0.42.1"},
          {"num_attention_heads", 12},
          {"attention_head_dim", 128},
          {"in_channels", 16},
          {"text_dim", 4096},
          {"freq_dim", 256},
          {"ffn_dim", 8960},
          {"num_layers", 30}};
}

json vae_json() {
  return {{"_class_name", "AutoencoderKLWan"},
          {"base_dim", 8},
          {"z_dim", 2},
          {"dim_mult", {1, 2, 4, 4}},
          {"num_res_blocks", 2},
          {"temperal_downsample", {false, true, true}},
          {"latents_mean", {0.0, 0.5}},
          {"latents_std", {1.0, 2.0}}};
}

TEST(TransformerConfig, TakesDefaultsOfTheReference) {
  const auto config = parse<TransformerConfig>(transformer_json());
  EXPECT_EQ(config.patch_size, (std::array<int64_t, 3>{1, 2, 2}));
  EXPECT_EQ(config.out_channels, 16);
  EXPECT_TRUE(config.cross_attn_norm);
  EXPECT_EQ(config.eps, 1e-6);
  EXPECT_EQ(config.rope_max_seq_len, 1024);
  EXPECT_FALSE(config.image_dim.has_value());
  EXPECT_FALSE(config.vace());
  EXPECT_EQ(config.inner_dim(), 1536);
  EXPECT_EQ(config.patch_input_dim(), 64);
}

TEST(TransformerConfig, NullOutChannelsMeanInChannels) {
  json document = transformer_json();
  document["in_channels"] = 48;
  document["out_channels"] = nullptr;
  EXPECT_EQ(parse<TransformerConfig>(document).out_channels, 48);
}

TEST(TransformerConfig, IgnoresUnknownAndUnderscoredKeys) {
  json document = transformer_json();
  document["_name_or_path"] = 3;
  document["something_new"] = json::array({1, "two"});
  EXPECT_EQ(refusal<TransformerConfig>(document), "");
}

TEST(TransformerConfig, RefusesAbsurdValues) {
  const json good = transformer_json();
  expect_refused<TransformerConfig>(good, "_class_name", "FluxTransformer2DModel");
  expect_refused<TransformerConfig>(good, "num_layers", 0);
  expect_refused<TransformerConfig>(good, "num_layers", -3);
  expect_refused<TransformerConfig>(good, "num_layers", 2.5);
  expect_refused<TransformerConfig>(good, "num_layers", "thirty");
  expect_refused<TransformerConfig>(good, "num_layers", 1000000);
  expect_refused<TransformerConfig>(good, "num_attention_heads", 0);
  expect_refused<TransformerConfig>(good, "attention_head_dim", 127);
  expect_refused<TransformerConfig>(good, "ffn_dim", int64_t{1} << 62);
  expect_refused<TransformerConfig>(good, "freq_dim", 255);
  expect_refused<TransformerConfig>(good, "patch_size", json::array({1, 2}));
  expect_refused<TransformerConfig>(good, "patch_size", json::array({1, 0, 2}));
  expect_refused<TransformerConfig>(good, "eps", 0.0);
  expect_refused<TransformerConfig>(good, "cross_attn_norm", "yes");
  expect_refused<TransformerConfig>(good, "qk_norm", "layer_norm");
  expect_refused<TransformerConfig>(good, "qk_norm", true);
  EXPECT_EQ(refusal_with<TransformerConfig>(good, "qk_norm", "rms_norm_across_heads"), "");
}

TEST(Configs, RefuseQuantizedWeights) {
  expect_quantized_refused<TransformerConfig>(transformer_json());
  expect_quantized_refused<VaeConfig>(vae_json());
}

TEST(TransformerConfig, RequiresEverySize) {
  for (const char* key : {"_class_name", "num_attention_heads", "attention_head_dim", "in_channels", "text_dim",
                          "freq_dim", "ffn_dim", "num_layers"}) {
    expect_required<TransformerConfig>(transformer_json(), key);
  }
}

TEST(TransformerConfig, ReadsTheFaceOfAnimate) {
  json document = transformer_json();
  document["_class_name"] = "WanAnimateTransformer3DModel";
  document["in_channels"] = 36;
  document["latent_channels"] = 16;
  document["out_channels"] = nullptr;
  document["image_dim"] = 1280;
  document["num_layers"] = 40;
  const auto config = parse<TransformerConfig>(document);
  ASSERT_TRUE(config.animate());
  EXPECT_EQ(config.out_channels, 16);
  EXPECT_EQ(config.face->motion_channels, (std::vector<int64_t>{32, 64, 128, 256, 512, 512, 512, 512}));
  EXPECT_EQ(config.face_adapters(), 8);
  EXPECT_EQ(config.with_layers(2).face_adapters(), 1);
  EXPECT_EQ(config.published_name(1, 720), "");
  json no_in = document;
  no_in["in_channels"] = nullptr;
  EXPECT_EQ(parse<TransformerConfig>(no_in).in_channels, 36);
  json other = document;
  other["motion_encoder_channel_sizes"] = {{"4", 12}, {"8", 10}, {"16", 8}};
  other["motion_encoder_size"] = 16;
  EXPECT_EQ(parse<TransformerConfig>(other).face->motion_channels, (std::vector<int64_t>{8, 10, 12}));
  expect_refused<TransformerConfig>(document, "in_channels", 20);
  expect_refused<TransformerConfig>(document, "motion_encoder_size", 500);
  expect_refused<TransformerConfig>(document, "motion_dim", 600);
  expect_refused<TransformerConfig>(document, "inject_face_latents_blocks", 7);
  expect_refused<TransformerConfig>(document, "face_encoder_num_heads", 0);
  document.erase("image_dim");
  EXPECT_NE(refusal_with<TransformerConfig>(document, "qk_norm", "rms_norm_across_heads").find("image_dim"),
            std::string::npos);
}

TEST(TransformerConfig, NamesBlocksInInt8) {
  const auto refusal = [](const TransformerConfig& of, const char* layers) -> std::string {
    try {
      of.with_int8(layers);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TransformerConfig config;
  config.num_layers = 6;
  using Blocks = std::vector<int64_t>;
  EXPECT_EQ(config.int8_blocks, Blocks());
  EXPECT_EQ(config.with_int8("inner").int8_blocks, (Blocks{1, 2, 3, 4}));
  EXPECT_EQ(config.with_int8("all").int8_blocks, (Blocks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(config.with_int8("5,1-2,2").int8_blocks, (Blocks{1, 2, 5}));
  config.vace_layers = {0, 2, 4};  // blocks 6 to 8
  EXPECT_EQ(config.with_int8("inner").int8_blocks, (Blocks{1, 2, 3, 4, 7}));
  EXPECT_EQ(config.with_int8("all").int8_blocks.size(), 9u);
  EXPECT_EQ(config.with_int8("8").int8_blocks, Blocks{8});
  for (const char* wrong : {"", "9", "-1", "1-", "2-1", "1,,2", "1-9", "x", " 1", "99999999999999999999"})
    EXPECT_THAT(refusal(config, wrong), testing::HasSubstr("int8_layers: '")) << wrong;
  config.vace_layers = {};
  config.num_layers = 2;
  EXPECT_THAT(refusal(config, "inner"), testing::HasSubstr("set all"));
  EXPECT_THAT(refusal(config, "auto,0"), testing::HasSubstr("'auto' chooses blocks of every expert; give it alone"));
}

TEST(TransformerConfig, ReadsVaceLayers) {
  json document = transformer_json();
  document["_class_name"] = "WanVACETransformer3DModel";
  expect_required<TransformerConfig>(document, "vace_layers");
  document["vace_layers"] = {0, 2, 4};
  EXPECT_EQ(parse<TransformerConfig>(document).vace_layers, (std::vector<int64_t>{0, 2, 4}));
  for (const json& layers : {json{1, 2}, json{0, 2, 2}, json{0, 30}, json::array()}) {
    expect_refused<TransformerConfig>(document, "vace_layers", layers);
  }
}

TEST(VaeConfig, TakesDefaultsOfOlderFiles) {
  const auto config = parse<VaeConfig>(vae_json());
  EXPECT_EQ(config.decoder_base_dim, 8);
  EXPECT_EQ(config.patch_size, 1);
  EXPECT_EQ(config.temporal_downsample, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(config.scale_factor_spatial, 8);
  EXPECT_EQ(config.latents_std[1], 2.0f);
}

TEST(VaeConfig, RefusesWhatDoesNotFitTogether) {
  const json good = vae_json();
  expect_refused<VaeConfig>(good, "_class_name", "AutoencoderKL");
  expect_refused<VaeConfig>(good, "latents_mean", {0.0});
  expect_refused<VaeConfig>(good, "latents_std", {1.0, 0.0});
  expect_refused<VaeConfig>(good, "temperal_downsample", {false, true});
  expect_refused<VaeConfig>(good, "temperal_downsample", {0, 1, 1});
  expect_refused<VaeConfig>(good, "dim_mult", {1, 0, 4, 4});
  expect_refused<VaeConfig>(good, "scale_factor_spatial", 16);
  expect_refused<VaeConfig>(good, "scale_factor_temporal", 8);
  expect_refused<VaeConfig>(good, "attn_scales", {1.0});
  expect_refused<VaeConfig>(good, "patch_size", 2);
  expect_refused<VaeConfig>(good, "out_channels", 12);  // decoders to twice the size, whose frames are no pixels yet
  expect_refused<VaeConfig>(good, "in_channels", 4);
  json thirds = good;
  thirds["patch_size"] = 3;
  thirds["in_channels"] = thirds["out_channels"] = 27;
  expect_refused<VaeConfig>(thirds, "scale_factor_spatial", 24);  // cut into no whole tiles
  for (const char* key : {"base_dim", "z_dim", "dim_mult", "num_res_blocks", "temperal_downsample", "latents_mean"}) {
    expect_required<VaeConfig>(good, key);
  }
}

TEST(SchedulerConfigFile, ReadsEverySolver) {
  const json unipc = {{"_class_name", "UniPCMultistepScheduler"}, {"flow_shift", 3.0}, {"use_flow_sigmas", true}};
  EXPECT_EQ(parse<SchedulerConfigFile>(unipc).flow_shift, 3.0);
  expect_required<SchedulerConfigFile>(unipc, "flow_shift");
  expect_refused<SchedulerConfigFile>(unipc, "flow_shift", 0.0);
  expect_refused<SchedulerConfigFile>(unipc, "prediction_type", "epsilon");
  expect_refused<SchedulerConfigFile>(unipc, "use_flow_sigmas", false);
  expect_refused<SchedulerConfigFile>(unipc, "solver_order", 3);
  expect_refused<SchedulerConfigFile>(unipc, "use_karras_sigmas", true);
  expect_refused<SchedulerConfigFile>(unipc, "_class_name", "DDIMScheduler");
  expect_refused<SchedulerConfigFile>(unipc, "solver_p", "DDIMScheduler");
  const json euler = {{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"shift", 5.0}};
  EXPECT_EQ(parse<SchedulerConfigFile>(euler).flow_shift, 5.0);
  const json dpm = {{"_class_name", "DPMSolverMultistepScheduler"},
                    {"flow_shift", 8.0},
                    {"use_flow_sigmas", true},
                    {"prediction_type", "flow_prediction"},
                    {"algorithm_type", "dpmsolver++"},
                    {"solver_type", "midpoint"},
                    {"lower_order_final", false}};
  EXPECT_EQ(parse<SchedulerConfigFile>(dpm).flow_shift, 8.0);
  expect_refused<SchedulerConfigFile>(dpm, "solver_order", 3);
  expect_refused<SchedulerConfigFile>(dpm, "algorithm_type", "sde-dpmsolver++");
  expect_refused<SchedulerConfigFile>(dpm, "solver_type", "heun");
  expect_refused<SchedulerConfigFile>(dpm, "use_lu_lambdas", true);
  expect_refused<SchedulerConfigFile>(dpm, "final_sigmas_type", "sigma_min");
}

json pipeline_json() {
  return {{"_class_name", "WanPipeline"},
          {"scheduler", {"diffusers", "UniPCMultistepScheduler"}},
          {"text_encoder", {"transformers", "UMT5EncoderModel"}},
          {"tokenizer", {"transformers", "T5TokenizerFast"}},
          {"transformer", {"diffusers", "WanTransformer3DModel"}},
          {"transformer_2", {nullptr, nullptr}},
          {"boundary_ratio", nullptr},
          {"vae", {"diffusers", "AutoencoderKLWan"}}};
}

TEST(PipelineConfig, TwoExpertsNeedABoundary) {
  EXPECT_FALSE(parse<PipelineConfig>(pipeline_json()).has("transformer_2"));
  expect_refused<PipelineConfig>(pipeline_json(), "boundary_ratio", 0.5);
  json document = pipeline_json();
  document["transformer_2"] = document["transformer"];
  EXPECT_NE(refusal<PipelineConfig>(document).find("boundary_ratio"), std::string::npos);
  expect_refused<PipelineConfig>(document, "boundary_ratio", 1.5);
  document["boundary_ratio"] = 0.875;
  EXPECT_EQ(parse<PipelineConfig>(document).boundary_ratio, 0.875);
}

TEST(PipelineConfig, RefusesWhatIsMissingOrMalformed) {
  expect_refused<PipelineConfig>(pipeline_json(), "_class_name", "FluxPipeline");
  expect_refused<PipelineConfig>(pipeline_json(), "vae", {nullptr, nullptr});
  expect_refused<PipelineConfig>(pipeline_json(), "vae", {"diffusers"});
  for (const char* key : {"_class_name", "scheduler", "text_encoder", "tokenizer", "transformer", "vae"}) {
    expect_required<PipelineConfig>(pipeline_json(), key);
  }
}

TEST(PipelineConfig, RefusesComponentsOfOtherClasses) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"scheduler", {"diffusers", "DDIMScheduler"}},
                                   {"scheduler", {"transformers", "UniPCMultistepScheduler"}},
                                   {"text_encoder", {"transformers", "T5EncoderModel"}},
                                   {"tokenizer", {"transformers", "CLIPTokenizer"}},
                                   {"transformer", {"diffusers", "FluxTransformer2DModel"}},
                                   {"transformer_2", {"diffusers", "FluxTransformer2DModel"}},
                                   {"vae", {"diffusers", "AutoencoderKL"}},
                                   {"vae", {"my_module", "AutoencoderKLWan"}},
                                   {"image_encoder", {"transformers", "SiglipVisionModel"}},
                                   {"image_processor", {"transformers", "SiglipImageProcessor"}},
                                   {"safety_checker", {"transformers", "CLIPVisionModel"}}}) {
    expect_refused<PipelineConfig>(pipeline_json(), key, value);
    const std::string message = refusal_with<PipelineConfig>(pipeline_json(), key, value);
    EXPECT_NE(message.find(value[1].get<std::string>()), std::string::npos) << message;
  }
  EXPECT_EQ(refusal_with<PipelineConfig>(pipeline_json(), "image_encoder", {"transformers", "CLIPVisionModel"}), "");
  EXPECT_EQ(refusal_with<PipelineConfig>(pipeline_json(), "safety_checker", {nullptr, nullptr}), "");
}

TransformerConfig text_to_video(int64_t layers, int64_t heads) {
  TransformerConfig config;
  config.num_layers = layers;
  config.num_attention_heads = heads;
  config.attention_head_dim = 128;
  config.in_channels = 16;
  return config;
}

TEST(PublishedModel, IsKnownByConfiguration) {
  const TransformerConfig small = text_to_video(30, 12), large = text_to_video(40, 40);
  EXPECT_EQ(small.published_name(1, 480), "wan2.1_t2v_1.3b");
  EXPECT_EQ(large.published_name(1, 720), "wan2.1_t2v_14b");
  EXPECT_EQ(large.published_name(2, 480), "wan2.2_t2v_a14b");
  TransformerConfig image = large;
  image.in_channels = 36;
  EXPECT_EQ(image.published_name(2, 480), "wan2.2_i2v_a14b");
  EXPECT_EQ(image.published_name(1, 480), "");  // 2.1 has image tokens
  image.image_dim = 1280;
  EXPECT_EQ(image.published_name(1, 480), "wan2.1_i2v_14b_480p");
  EXPECT_EQ(image.published_name(1, 704), "wan2.1_i2v_14b_480p");
  EXPECT_EQ(image.published_name(1, 720), "wan2.1_i2v_14b_720p");
  image.pos_embed_seq_len = 514;  // first and last frame
  EXPECT_EQ(image.published_name(1, 720), "");
  TransformerConfig vace = large;
  vace.vace_layers = {0, 5};
  EXPECT_EQ(vace.published_name(1, 480), "");
  EXPECT_EQ(text_to_video(2, 4).published_name(1, 480), "");
  TransformerConfig ti2v = text_to_video(30, 24);
  ti2v.in_channels = 48;
  EXPECT_EQ(ti2v.published_name(1, 704), "");
}

TEST(Golden, EveryRecordedFolderParses) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(kPipelines)) {
    SCOPED_TRACE(entry.path().string());
    ASSERT_NO_THROW(PipelineConfig::load(entry.path() / "model_index.json"));
    ASSERT_NO_THROW(TransformerConfig::load(entry.path() / "transformer/config.json"));
    ASSERT_NO_THROW(encoders::TextEncoderConfig::load(entry.path() / "text_encoder/config.json"));
    ASSERT_NO_THROW(VaeConfig::load(entry.path() / "vae/config.json"));
    ASSERT_NO_THROW(SchedulerConfigFile::load(entry.path() / "scheduler/scheduler_config.json"));
    ++folders;
  }
  EXPECT_GT(folders, 0);
}

TEST(Golden, EveryRecordedTransformerIsSupported) {
  for (const char* name : {"wan21_t2v", "wan21_t2v_h6", "wan22_t2v", "wan21_i2v", "wan21_flf2v", "wan21_vace",
                           "wan22_animate", "wan22_i2v", "wan22_ti2v"}) {
    EXPECT_NO_THROW(require_supported(TransformerConfig::load(kPipelines / name / "transformer/config.json"), name));
  }
}

TEST(TransformerConfig, RefusesImageKeysThatCannotBe) {
  const auto config = TransformerConfig::load(kPipelines / "wan21_flf2v/transformer/config.json");
  const auto refused = [&](const auto& change, const char* key) {
    TransformerConfig changed = config;
    change(changed);
    try {
      require_supported(changed, "here");
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  refused([](TransformerConfig& c) { c.added_kv_proj_dim = c.inner_dim() + 1; }, "added_kv_proj_dim");
  refused([](TransformerConfig& c) { c.image_dim.reset(); }, "image_dim");
  refused(
      [](TransformerConfig& c) {
        c.image_dim.reset();
        c.added_kv_proj_dim.reset();
      },
      "pos_embed_seq_len");
}

}  // namespace
}  // namespace zoetrope::wan
