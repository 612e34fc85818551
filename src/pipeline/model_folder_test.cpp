#include "pipeline/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
