#include "pipeline/model_files/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "pipeline/model_files/fingerprint.h"
#include "pipeline/planning/planned_run.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const ModelCopy& model) {
  return error_of([&] { ModelFolder::open(model.path()); });
}

TEST(ModelFolder, RecordedModelsOpen) {
  EXPECT_EQ(ModelFolder::open(recorded_model("wan21_t2v")).experts.size(), 1u);
  EXPECT_EQ(ModelFolder::open(recorded_model("wan22_t2v")).experts.size(), 2u);
}

// Whole in itself, but of other tokens than the first expert: {1, 2, 2} and {1, 1, 4} have the same number of weights.
TEST(ModelFolder, ExpertsOfDifferentPatchesAreRefused) {
  const ModelCopy model("wan22_t2v");
  const Shape stored =
      ModelFolder::open(model.path()).experts[1].weights.checkpoint()->info("patch_embedding.weight").shape;
  ASSERT_EQ(stored[4], 2);
  model.reshape("transformer_2", {{"patch_embedding.weight", {stored[0], stored[1], 1, 1, 4}}});
  model.replace("transformer_2/config.json", "1,\n    2,\n    2", "1,\n    1,\n    4");
  EXPECT_THAT(refusal(model), AllOf(HasSubstr("patch_size[1] is 2 in transformer/config.json"),
                                    HasSubstr("1 in transformer_2/config.json")));
}

TEST(ModelFolder, ExpertsOfDifferentReachAreRefused) {
  const ModelCopy model("wan22_t2v");
  model.replace("transformer_2/config.json", "\"rope_max_seq_len\": 1024", "\"rope_max_seq_len\": 64");
  EXPECT_THAT(refusal(model), HasSubstr("rope_max_seq_len is 1024 in transformer/config.json but 64"));
}

// Components of another folder, with other values than the model's and the same tensors.
TEST(ModelFolder, AComponentsFolderIsReadWithItsOwnConfig) {
  const ModelCopy model("wan21_t2v"), other("wan21_t2v");
  other.replace("transformer/config.json", "\"eps\": 1e-06", "\"eps\": 0.25");
  other.replace("transformer/config.json", "\"attention_head_dim\": 12", "\"attention_head_dim\": 24");
  other.replace("transformer/config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 2");
  other.replace("transformer/config.json", "\"rope_max_seq_len\": 1024", "\"rope_max_seq_len\": 64");
  other.replace("vae/config.json", "-0.7571", "0.5");
  other.replace("vae/config.json", "2.8184", "4");
  other.replace("text_encoder/config.json", "\"layer_norm_epsilon\": 1e-06", "\"layer_norm_epsilon\": 0.125");
  GenerateOptions options = small_run();
  options.model = model.path().string();
  const ModelFolder plain = ModelFolder::open(options);
  options.transformer = (other.path() / "transformer").string();
  options.vae = (other.path() / "vae").string();
  options.text_encoder = (other.path() / "text_encoder").string();
  // A run and its plan.
  const ModelFolder run = ModelFolder::open(options);
  const PlannedRun planned(options);
  for (const ModelFolder* opened : {&run, &planned.model}) {
    const wan::TransformerConfig& config = opened->experts[0].config;
    EXPECT_EQ(config.eps, 0.25);
    EXPECT_EQ(config.num_attention_heads, 2);
    EXPECT_EQ(config.attention_head_dim, 24);
    EXPECT_EQ(config.rope_max_seq_len, 64);
    EXPECT_EQ(opened->vae_config.latents_mean[0], 0.5f);
    EXPECT_EQ(opened->vae_config.latents_std[0], 4.0f);
    EXPECT_EQ(opened->text_encoder_config.layer_norm_epsilon, 0.125);
  }
  EXPECT_THAT(fingerprint(run), HasSubstr("\ntransformer config.json="));
  EXPECT_NE(transformer_identity(run, 0), transformer_identity(plain, 0));
}

TEST(ModelFolder, AComponentsConfigThatDoesNotFitIsRefused) {
  const auto refused = [](const std::string& component, const std::string& from, const std::string& to) {
    const ModelCopy other("wan21_t2v");
    other.replace(component + "/config.json", from, to);
    GenerateOptions options;
    options.model = recorded_model("wan21_t2v").string();
    (component == "vae" ? options.vae : options.transformer) = (other.path() / component).string();
    const std::string error = error_of([&] { ModelFolder::open(options); });
    EXPECT_THAT(error, HasSubstr((other.path() / component).string()));
    return error;
  };
  EXPECT_THAT(refused("transformer", "rms_norm_across_heads", "layer_norm"),
              AllOf(HasSubstr("config.json"), HasSubstr("qk_norm"), HasSubstr("rms_norm_across_heads")));
  EXPECT_THAT(refused("transformer", "\"added_kv_proj_dim\": null", "\"added_kv_proj_dim\": 48"),
              HasSubstr("added_kv_proj_dim needs an image_dim"));
  EXPECT_THAT(refused("transformer", "\"cross_attn_norm\": true", "\"cross_attn_norm\": false"), HasSubstr("norm2"));
  EXPECT_THAT(refused("transformer", "\"text_dim\": 32", "\"text_dim\": 64"), HasSubstr("64"));
  EXPECT_THAT(refused("transformer", "WanTransformer3DModel", "WanModel2"), HasSubstr("_class_name"));
  EXPECT_THAT(refused("vae", "\"scale_factor_spatial\": 8", "\"scale_factor_spatial\": 16"),
              HasSubstr("scale_factor_spatial 16"));
}

// What the authors' config says is checked, and the rest is the model's.
TEST(ModelFolder, AnOriginalConfigMustNotContradictTheModel) {
  const ModelCopy other("wan21_t2v");
  const TestFolder folder;
  std::filesystem::copy(other.path() / "transformer", folder / "own", std::filesystem::copy_options::recursive);
  GenerateOptions options;
  options.model = recorded_model("wan21_t2v").string();
  options.transformer = (folder / "own").string();
  folder.write("own/config.json", R"({"_class_name": "WanModel", "dim": 48, "num_heads": 4, "eps": 1e-06})");
  EXPECT_EQ(ModelFolder::open(options).experts[0].config.num_attention_heads, 4);
  folder.write("own/config.json", R"({"_class_name": "WanModel", "dim": 48, "num_heads": 2})");
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }),
              AllOf(HasSubstr("own/config.json"), HasSubstr("num_heads is 2, but must be 4")));
  folder.write("own/config.json", R"({"model_type": "t2v", "dim": 64})");
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), HasSubstr("dim is 64, but must be 48"));
  folder.write("own/config.json", R"({"_class_name": "WanModel", "eps": 1e-05})");
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), HasSubstr("eps is 1e-05, but must be 1e-06"));

  // As many layers as the model's, elsewhere: their tensors have the same names.
  const ModelCopy vace("wan21_vace");
  options.model = recorded_model("wan21_vace").string();
  options.transformer = (vace.path() / "transformer").string();
  std::ofstream(vace.path() / "transformer/config.json") << R"({"_class_name": "VaceWanModel", "vace_layers": [0, 1]})";
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), HasSubstr("vace_layers is [0, 1], but must be [0, 2]"));
}

TEST(ModelFolder, LayersAreTheFirstOfEveryTransformer) {
  const ModelFolder whole = ModelFolder::open(recorded_model("wan22_t2v"));
  const ModelFolder cut = ModelFolder::open(recorded_model("wan22_t2v"), 1);
  ASSERT_EQ(cut.experts.size(), 2u);
  for (size_t i = 0; i < cut.experts.size(); ++i) {
    EXPECT_EQ(cut.experts[i].config.num_layers, 1);
    EXPECT_LT(cut.experts[i].weights.tensors().size(), whole.experts[i].weights.tensors().size());
  }
  EXPECT_EQ(whole.experts[0].layers_text(), "2 layers");
  EXPECT_EQ(cut.experts[0].layers_text(), "1 of 2 layers");
  EXPECT_THAT(error_of([] { ModelFolder::open(recorded_model("wan22_t2v"), 3); }),
              AllOf(HasSubstr("layers=3"), HasSubstr("the model has only 2")));
}

// Of three layers the first and the third are controlled.
TEST(ModelFolder, ControlLayersAreThoseOfTheLayers) {
  const auto control = [](int64_t layers) {
    return ModelFolder::open(recorded_model("wan21_vace"), layers).experts[0].config.vace_layers;
  };
  EXPECT_THAT(control(1), testing::ElementsAre(0));
  EXPECT_THAT(control(2), testing::ElementsAre(0));
  EXPECT_THAT(control(3), testing::ElementsAre(0, 2));
}

// The first value that a folder's random weights have.
float first_value(const ModelFolder& model) {
  const auto source = model.experts[0].weights.source(1);
  const Tensor values = Tensor::uninitialized(DType::kF32, source->info("proj_out.bias").shape);
  source->read("proj_out.bias", values);
  return values.data<float>()[0];
}

TEST(ModelFolder, RandomWeightsAreThoseOfTheirSeed) {
  GenerateOptions options;
  options.model = recorded_model("wan21_t2v").string();
  options.weights = WeightSource::kRandom;
  const float unset = first_value(ModelFolder::open(options));
  EXPECT_EQ(unset, first_value(ModelFolder::open_random(options.model, 0)));
  options.weights_seed = 7;
  EXPECT_EQ(first_value(ModelFolder::open(options)), first_value(ModelFolder::open_random(options.model, 7)));
  EXPECT_NE(first_value(ModelFolder::open(options)), unset);
  options.weights = WeightSource::kCheckpoint;
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }),
              AllOf(HasSubstr("weights_seed=7: with weights=checkpoint"), HasSubstr("set weights=random")));
}

TEST(ModelFolder, TwoExpertsMayHaveBlocksOfTheirOwnInInt8) {
  GenerateOptions options;
  options.model = recorded_model("wan22_t2v").string();
  options.dtype = DType::kI8;
  using Blocks = std::vector<int64_t>;
  for (const auto& [layers, first, second] :
       {std::tuple("0/1", Blocks{0}, Blocks{1}), std::tuple("all/0", Blocks{0, 1}, Blocks{0}),
        std::tuple("1", Blocks{1}, Blocks{1})}) {
    options.int8_layers = layers;
    const ModelFolder model = ModelFolder::open(options);
    EXPECT_EQ(model.experts[0].config.int8_blocks, first) << layers;
    EXPECT_EQ(model.experts[1].config.int8_blocks, second) << layers;
    GenerateOptions again = options;
    again.int8_layers = model.int8_layers();
    EXPECT_EQ(ModelFolder::open(again).int8_layers(), model.int8_layers());
    EXPECT_EQ(ModelFolder::open(again).experts[1].config.int8_blocks, second) << again.int8_layers;
  }
  options.int8_layers = "0/2";
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), HasSubstr("'2' is neither"));
  options.model = recorded_model("wan21_t2v").string();
  options.int8_layers = "0/1";
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), HasSubstr("int8_layers=0/1: a slash"));
}

TEST(ModelFolder, TwoExpertsNeedABoundary) {
  const ModelCopy model("wan22_t2v");
  model.replace("model_index.json", "\"boundary_ratio\": 0.875,", "");
  EXPECT_THAT(refusal(model), HasSubstr("transformer_2 and boundary_ratio belong together"));
}

}  // namespace
}  // namespace zoetrope::pipeline
