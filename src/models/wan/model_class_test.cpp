#include "models/wan/model_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/project_folders.h"
#include "base/test_folder.h"

namespace zoetrope::wan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::filesystem::path recorded(const std::string& name) {
  return std::filesystem::path(kGoldenFolder) / "pipelines" / name;
}

constexpr const char* kNone = "no error";  // of error_of()

struct Configs {
  explicit Configs(const std::string& name)
      : pipeline(PipelineConfig::load(recorded(name) / "model_index.json")),
        transformer(TransformerConfig::load(recorded(name) / "transformer/config.json")),
        vae(VaeConfig::load(recorded(name) / "vae/config.json")) {}

  ModelClass kind() const { return model_class(pipeline, transformer, vae, "model"); }
  std::string refusal() const {
    return error_of([&] { kind(); });
  }

  PipelineConfig pipeline;
  TransformerConfig transformer;
  VaeConfig vae;
};

TEST(ModelClass, RecordedModelsAreOfTheirKind) {
  struct Case {
    const char* model;
    Conditioning conditioning;
    ModelInput image, last_image, control;
  };
  constexpr ModelInput no{}, may{true, false}, must{true, true};
  for (const Case& c :
       {Case{"wan21_t2v", Conditioning::kNone, no, no, no}, Case{"wan21_t2v_h6", Conditioning::kNone, no, no, no},
        Case{"wan22_t2v", Conditioning::kNone, no, no, no}, Case{"wan21_i2v", Conditioning::kChannels, must, no, no},
        Case{"wan22_i2v", Conditioning::kChannels, must, may, no},
        Case{"wan21_flf2v", Conditioning::kChannels, must, must, no},
        Case{"wan22_ti2v", Conditioning::kFirstFrame, may, no, no},
        Case{"wan21_vace", Conditioning::kControl, no, no, may},
        Case{"wan22_animate", Conditioning::kAnimate, must, no, no}}) {
    const ModelClass kind = Configs(c.model).kind();
    EXPECT_EQ(kind.conditioning, c.conditioning) << c.model;
    EXPECT_EQ(kind.image, c.image) << c.model;
    EXPECT_EQ(kind.last_image, c.last_image) << c.model;
    EXPECT_EQ(kind.control, c.control) << c.model;
    EXPECT_EQ(kind.animation.needed, c.conditioning == Conditioning::kAnimate) << c.model;
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

}  // namespace
}  // namespace zoetrope::wan
