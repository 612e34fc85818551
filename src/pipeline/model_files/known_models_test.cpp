#include "pipeline/model_files/known_models.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "io/weights/test_files.h"
#include "models/wan/config.h"
#include "models/wan/tensor_tables.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/planning/planned_run.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A transformer of `model` in the original names, all zeros: the file has no blocks on the disk.
class KnownModels : public testing::Test {
 protected:
  // `without`: a tensor that is left out. `prefix`: of every name.
  fs::path transformer(const std::string& model, const std::string& file, const std::string& without = "",
                       const std::string& prefix = "") const {
    const auto config = wan::TransformerConfig::load(config_folder() / model / "transformer" / "config.json");
    std::string header = "{";
    int64_t bytes = 0;
    for (const io::TensorSpec& spec : wan::transformer_tensors(config)) {
      if (spec.name == without) continue;
      const int64_t size = spec.shape.size() * 2;
      header +=
          fmt::format(R"({}"{}": {{"dtype": "BF16", "shape": {}, "data_offsets": [{}, {}]}})", bytes == 0 ? "" : ", ",
                      prefix + spec.name_in(io::NamingScheme::kOriginal), spec.shape.to_string(), bytes, bytes + size);
      bytes += size;
    }
    fs::create_directories((folder_ / file).parent_path());
    const fs::path path = folder_.write(file, io::safetensors_bytes(header + "}", ""));
    fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(bytes));
    return path;
  }
  static std::vector<std::string> models(const fs::path& file) {
    return models_with(io::Checkpoint::open_file(file), FileKind::kTransformer);
  }

 private:
  TestFolder folder_;
};

TEST_F(KnownModels, ModelsAreKnownByTheirShapes) {
  EXPECT_THAT(models(transformer("wan2.1_t2v_1.3b", "a.safetensors")), ElementsAre("wan2.1_t2v_1.3b"));
  EXPECT_THAT(models(transformer("wan2.2_ti2v_5b", "b.safetensors")), ElementsAre("wan2.2_ti2v_5b"));
  EXPECT_THAT(models(transformer("wan2.1_vace_14b", "c.safetensors")),
              ElementsAre("wan2.1_vace_14b", "wan2.2_vace_fun_a14b"));
  EXPECT_THAT(models(transformer("wan2.1_i2v_14b_480p", "d.safetensors")),
              ElementsAre("wan2.1_i2v_14b_480p", "wan2.1_i2v_14b_720p"));
  EXPECT_THAT(models(transformer("wan2.1_flf2v_14b_720p", "e.safetensors")), ElementsAre("wan2.1_flf2v_14b_720p"));
  EXPECT_THAT(models(transformer("wan2.1_t2v_14b", "f.safetensors")), ElementsAre("wan2.1_t2v_14b", "wan2.2_t2v_a14b"));
}

TEST_F(KnownModels, NamesMayBeBehindAPrefix) {
  for (const char* prefix : {"", "model.", "diffusion_model.", "model.diffusion_model."}) {
    const fs::path file = transformer("wan2.1_t2v_1.3b", "a.safetensors", "", prefix);
    EXPECT_THAT(models(file), ElementsAre("wan2.1_t2v_1.3b")) << prefix;
    EXPECT_EQ(open_alone(file, "").names.prefix, prefix);
  }
}

TEST_F(KnownModels, AFileAloneIsPlannedAsItsModel) {
  GenerateOptions options;
  options.transformer = transformer("wan2.1_t2v_1.3b", "a.safetensors").string();
  options.height = options.width = 64;
  options.num_frames = 1;
  const PlannedRun run(options);
  EXPECT_EQ(run.model.experts[0].config.num_layers, 30);
  EXPECT_GT(run.memory.configs.transformer_file_bytes, 2 * int64_t{1'400'000'000});
}

TEST_F(KnownModels, TheNameOfAFileDecidesBetweenModelsOfTheSameShapes) {
  const auto model = [&](const std::string& name) {
    return model_of(transformer("wan2.1_i2v_14b_480p", name + ".safetensors"), "");
  };
  for (const char* name : {"wan2.1_i2v_480p_14B", "i2v480", "wan_832x480", "20250720/I2V-14B-480P"})
    EXPECT_EQ(model(name), "wan2.1_i2v_14b_480p") << name;
  for (const char* name : {"wan2.1_i2v_720p_14B", "1280x720", "I2V-14B-720P", "720/wan_i2v"})
    EXPECT_EQ(model(name), "wan2.1_i2v_14b_720p") << name;
  for (const char* name : {"wan2.1_i2v", "20250720/wan2.1_i2v", "a3f720c9/wan2.1_i2v", "wan2.1_i2v_7200"}) {
    EXPECT_THAT(error_of([&] { model(name); }),
                testing::AllOf(HasSubstr("wan2.1_i2v_14b_480p and wan2.1_i2v_14b_720p have these tensors"),
                               HasSubstr("model=wan2.1_i2v_14b_480p")));
  }
}

TEST_F(KnownModels, WhatMayBeAnExpertOrAModelIsAskedFor) {
  EXPECT_THAT(error_of([&] { model_of(transformer("wan2.1_t2v_14b", "t2v14.safetensors"), ""); }),
              testing::AllOf(HasSubstr("wan2.1_t2v_14b and each expert of wan2.2_t2v_a14b have these tensors"),
                             HasSubstr("say model=wan2.1_t2v_14b, or name both experts")));
  EXPECT_THAT(error_of([&] { model_of(transformer("wan2.1_t2v_14b", "Wan2.2-T2V-A14B.safetensors"), ""); }),
              HasSubstr("one expert of wan2.2_t2v_a14b"));
}

TEST_F(KnownModels, OneExpertAloneIsAskedForTheOther) {
  const fs::path alone = transformer("wan2.1_t2v_14b", "wan2.1_t2v_14B.safetensors");
  const fs::path high = transformer("wan2.2_t2v_a14b", "wan2.2_t2v_high_noise_14B.safetensors");
  const fs::path low = transformer("wan2.2_t2v_a14b", "wan2.2_t2v_low_noise_14B.safetensors");
  EXPECT_EQ(model_of(alone, ""), "wan2.1_t2v_14b");
  EXPECT_EQ(model_of(high, low), "wan2.2_t2v_a14b");
  EXPECT_THAT(error_of([&] { model_of(high, ""); }),
              testing::AllOf(HasSubstr("one expert of wan2.2_t2v_a14b"), HasSubstr("model=wan2.1_t2v_14b")));
  const fs::path vace = transformer("wan2.1_vace_14b", "wan2.1_vace_14B.safetensors");
  const fs::path vace_high = transformer("wan2.2_vace_fun_a14b", "wan2.2_fun_vace_high_noise_14B.safetensors");
  const fs::path vace_low = transformer("wan2.2_vace_fun_a14b", "wan2.2_fun_vace_low_noise_14B.safetensors");
  EXPECT_EQ(model_of(vace, ""), "wan2.1_vace_14b");
  EXPECT_EQ(model_of(vace_high, vace_low), "wan2.2_vace_fun_a14b");
  EXPECT_THAT(error_of([&] { model_of(vace_high, ""); }), HasSubstr("one expert of wan2.2_vace_fun_a14b"));
  const fs::path small = transformer("wan2.1_t2v_1.3b", "small.safetensors");
  EXPECT_THAT(error_of([&] { model_of(small, low); }), HasSubstr("which has one expert; leave the key out"));
}

// Names that published files have, and what other words make of them.
TEST(Expertise, IsSaidByWholeWords) {
  for (const char* name : {"high_noise_model.safetensors", "wan2.2_i2v_lightx2v_4steps_lora_v1_high_noise.safetensors",
                           "Wan2.2-Fun-A14B-InP-high-noise-HPS2.1.safetensors", "Wan2.2-T2V-A14B-HighNoise-Q4_K_M.gguf",
                           "wan2.2_instareal_highnoise.safetensors",
                           "Wan22_A14B_T2V_HIGH_Lightning_4steps_lora_250928_rank128.safetensors",
                           "Wan_2_2_I2V_A14B_HIGH_lightx2v_MoE_distill_lora_rank_64_bf16.safetensors",
                           "Wan2.2_Remix_high_lighting.safetensors", "smoothMix_Wan22-I2V_V20_highQ4KM.gguf",
                           "BounceHighWan2_2.safetensors", "style_wan22_high_e40.safetensors",
                           "low_poly_high_noise.safetensors", "LowPoly-HIGH.safetensors", "high"}) {
    EXPECT_EQ(expertise_of(name), Expertise::kHighNoise) << name;
  }
  for (const char* name : {"v2 low_noise_model_rank64.safetensors", "stock_photography_wan22_LOW_v1.safetensors",
                           "WAN-2.2-I2V-Motion-LOW-v1.safetensors", "high_quality_low_noise.safetensors"}) {
    EXPECT_EQ(expertise_of(name), Expertise::kLowNoise) << name;
  }
  for (const char* name : {"low_poly_style.safetensors", "wan22_low_poly_style.safetensors", "LowPolyStyle.safetensors",
                           "high-res.safetensors", "high quality.safetensors", "slow_motion.safetensors",
                           "yellownoise.safetensors", "shallow.safetensors", "highres.safetensors",
                           "high_low.safetensors", "high_noise_and_low_noise.safetensors", "style.safetensors"}) {
    EXPECT_EQ(expertise_of(name), Expertise::kUnknown) << name;
  }
}

// Of the two experts of image to video; no model of one has their tensors.
TEST_F(KnownModels, AMergeOfBothExpertsIsToldWhatRunsIt) {
  const fs::path merge = transformer("wan2.2_i2v_a14b", "wan2.2-rapid-aio.safetensors");
  EXPECT_THAT(
      error_of([&] { model_of(merge, ""); }),
      testing::AllOf(HasSubstr("one expert of wan2.2_i2v_a14b"),
                     HasSubstr(fmt::format("copy of {} as model=", (config_folder() / "wan2.2_i2v_a14b").string())),
                     HasSubstr("neither transformer_2 nor boundary_ratio")));
}

TEST_F(KnownModels, TheNearestModelAndWhatDiffersAreNamed) {
  const fs::path cut = transformer("wan2.1_t2v_1.3b", "cut.safetensors", "blocks.7.attn1.to_q.weight");
  EXPECT_THAT(models(cut), IsEmpty());
  EXPECT_THAT(error_of([&] { model_of(cut, ""); }),
              testing::AllOf(HasSubstr("none of the known models; name a folder with its configs as model=; "
                                       "wan2.1_t2v_1.3b is the nearest: tensor 'blocks.7.self_attn.q.weight' is "
                                       "missing (have 824 of 825)"),
                             testing::Not(HasSubstr("cut.safetensors: tensor"))));
}

TEST_F(KnownModels, OneOfSeveralFilesIsNoComponent) {
  const fs::path part = transformer("wan2.1_t2v_1.3b", "diffusion_pytorch_model-00001-of-00006.safetensors");
  EXPECT_THAT(error_of([&] { model_of(part, ""); }),
              HasSubstr("is one of 6 files that hold the weights together, by its name; name their folder instead"));
  const fs::path only = transformer("wan2.1_t2v_1.3b", "diffusion_pytorch_model-00001-of-00001.safetensors");
  EXPECT_EQ(model_of(only, ""), "wan2.1_t2v_1.3b");
}

}  // namespace
}  // namespace zoetrope::pipeline
