#include "pipeline/model_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kNone = "no error";  // of error_of()

struct Configs {
  explicit Configs(const std::string& name)
      : pipeline(wan::PipelineConfig::load(recorded_model(name) / "model_index.json")),
        transformer(wan::TransformerConfig::load(recorded_model(name) / "transformer/config.json")),
        vae(wan::VaeConfig::load(recorded_model(name) / "vae/config.json")) {}

  ModelClass kind() const { return model_class(pipeline, transformer, vae, "model"); }
  std::string refusal() const {
    return error_of([&] { kind(); });
  }
  std::string refusal(const GenerateOptions& options) const {
    return error_of([&] { check_inputs(options, kind(), transformer); });
  }

  wan::PipelineConfig pipeline;
  wan::TransformerConfig transformer;
  wan::VaeConfig vae;
};

TEST(ModelClass, RecordedModelsAreOfTheirKind) {
  struct Case {
    const char* model;
    Conditioning conditioning;
    Need image, last_image, control;
  };
  constexpr Need no = Need::kRefused, may = Need::kOptional, must = Need::kRequired;
  for (const Case& c :
       {Case{"wan21_t2v", Conditioning::kNone, no, no, no}, Case{"wan21_t2v_h6", Conditioning::kNone, no, no, no},
        Case{"wan22_t2v", Conditioning::kNone, no, no, no}, Case{"wan21_i2v", Conditioning::kChannels, must, no, no},
        Case{"wan22_i2v", Conditioning::kChannels, must, may, no},
        Case{"wan21_flf2v", Conditioning::kChannels, must, must, no},
        Case{"wan22_ti2v", Conditioning::kFirstFrame, may, no, no},
        Case{"wan21_vace", Conditioning::kControl, no, no, may}}) {
    const ModelClass kind = Configs(c.model).kind();
    EXPECT_EQ(kind.conditioning, c.conditioning) << c.model;
    EXPECT_EQ(kind.image, c.image) << c.model;
    EXPECT_EQ(kind.last_image, c.last_image) << c.model;
    EXPECT_EQ(kind.control, c.control) << c.model;
  }
}

TEST(ModelClass, WhatDoesNotGoTogetherIsRefused) {
  Configs text("wan21_t2v");
  text.pipeline.class_name = "WanImageToVideoPipeline";
  EXPECT_THAT(text.refusal(), AllOf(HasSubstr("WanImageToVideoPipeline"), HasSubstr("text to video")));
  Configs channels("wan21_t2v");
  channels.transformer.in_channels = 20;
  EXPECT_THAT(channels.refusal(), AllOf(HasSubstr("in_channels 20"), HasSubstr("takes 16, or 36")));
  Configs image("wan22_i2v");
  image.pipeline.expand_timesteps = true;
  EXPECT_THAT(image.refusal(), HasSubstr("expand_timesteps"));
  Configs both("wan22_ti2v");
  both.pipeline.class_name = "WanImageToVideoPipeline";
  EXPECT_EQ(both.refusal(), kNone) << "the text-and-image model runs under either name";
}

TEST(ModelClass, InputsOfOtherModelsAreRefusedWithThoseTaken) {
  GenerateOptions options;
  options.image = "cat.png";
  EXPECT_EQ(Configs("wan21_t2v").refusal(options),
            "image: this model (text to video) takes a prompt alone; leave it out");
  EXPECT_EQ(Configs("wan21_i2v").refusal(options), kNone);
  EXPECT_EQ(Configs("wan22_ti2v").refusal(options), kNone);
  EXPECT_THAT(Configs("wan21_vace").refusal(options),
              HasSubstr("takes a prompt and, where wanted, control_video, mask, reference_images, conditioning_scale"));
  EXPECT_THAT(Configs("wan21_flf2v").refusal(options), HasSubstr("last_image: this model (first and last frame"));
  options.last_image = "dog.png";
  EXPECT_EQ(Configs("wan21_flf2v").refusal(options), kNone);
  EXPECT_EQ(Configs("wan22_i2v").refusal(options), kNone);
  EXPECT_EQ(Configs("wan21_i2v").refusal(options),
            "last_image: this model (image to video) takes a prompt and image; leave it out");
  EXPECT_THAT(Configs("wan22_ti2v").refusal(options), HasSubstr("takes a prompt and, where wanted, image; leave"));
  options.num_frames = 1;
  EXPECT_THAT(Configs("wan22_i2v").refusal(options), HasSubstr("num_frames=1"));
  EXPECT_EQ(Configs("wan21_i2v").refusal({}),
            "image: this model (image to video) needs the picture that the video begins with, as image=FILE");
}

TEST(ModelClass, InputsThatContradictEachOtherAreRefused) {
  const Configs vace("wan21_vace");
  EXPECT_EQ(vace.refusal({}), kNone) << "a prompt is enough";
  GenerateOptions options;
  options.mask = "mask.mp4";
  EXPECT_THAT(vace.refusal(options), HasSubstr("mask: masks the frames of control_video"));
  options = {};
  options.max_area = 1000;
  EXPECT_THAT(vace.refusal(options), HasSubstr("max_area: follows the shape of image"));
  options = {};
  options.reference_images = {"a.png", "", "b.png"};
  EXPECT_THAT(vace.refusal(options), HasSubstr("a name is missing"));
  options = {};
  options.conditioning_scale = {1, 2, 3};
  EXPECT_THAT(vace.refusal(options), AllOf(HasSubstr("3 numbers"), HasSubstr("2 control layers")));
}

TEST(ModelClass, ListsAreReadInOrder) {
  GenerateOptions options;
  EXPECT_TRUE(reference_paths(options).empty());
  options.reference_images = {"a.png", "b c.jpg"};
  EXPECT_EQ(reference_paths(options), (std::vector<std::filesystem::path>{"a.png", "b c.jpg"}));
  EXPECT_EQ(conditioning_scales(options, 3), (std::vector<float>{1, 1, 1}));
  options.conditioning_scale = {0.5};
  EXPECT_EQ(conditioning_scales(options, 2), (std::vector<float>{0.5, 0.5}));
  options.conditioning_scale = {0.5, -2};
  EXPECT_EQ(conditioning_scales(options, 2), (std::vector<float>{0.5, -2}));
}

}  // namespace
}  // namespace zoetrope::pipeline
