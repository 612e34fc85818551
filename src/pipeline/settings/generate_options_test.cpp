#include "pipeline/settings/generate_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "zoetrope/error.h"

#include "base/project_folders.h"
#include "base/test_folder.h"

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;

TEST(GenerateOptions, DocumentationHoldsEveryKeyAsItIsDescribed) {
  GenerateOptions options;
  std::stringstream text;
  text << std::ifstream(std::string(kSourceFolder) + "/docs/configuration.md").rdbuf();
  const std::string table = describe_options(options).markdown();
  EXPECT_THAT(text.str(), HasSubstr(table)) << "docs/configuration.md should hold:\n" << table;
}

TEST(GenerateOptions, ChangedSettingsMakeTheOptionsAgain) {
  GenerateOptions options;
  EXPECT_TRUE(changed_settings(options).empty());
  options.prompt = "two\nlines, a=b";
  options.flow_shift = 3.25;
  options.sigmas = {1, 0.5};
  options.ranks = 1;
  options.strategy.flash_block_sizes.block_q = 64;
  const std::map<std::string, std::string> changed = changed_settings(options);
  EXPECT_EQ(changed, (std::map<std::string, std::string>{{"prompt", "two\nlines, a=b"},
                                                         {"flow_shift", "3.25"},
                                                         {"sigmas", "1,0.5"},
                                                         {"ranks", "1"},
                                                         {"flash_block_sizes", "block_q:64"}}));
  GenerateOptions again;
  OptionSet set = describe_options(again);
  for (const auto& [key, value] : changed) set.set(key, value, "a file's tags");
  EXPECT_EQ(set.values(), describe_options(options).values());
}

std::string refusal(const GenerateOptions& options) {
  try {
    check_options(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GenerateOptions, DtypesHaveOneWordEachAndNoOtherIsGuessed) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8}) EXPECT_EQ(dtype_of(dtype_word(dtype)), dtype);
  EXPECT_EQ(dtype_of("f32"), DType::kF32);
  EXPECT_EQ(error_of([] { dtype_of("fp16"); }), "'fp16' is none of bf16, float32, int8");
}

TEST(GenerateOptions, SizesNoModelCanMakeAreRefusedWithTheNearest) {
  GenerateOptions options;
  options.model = "somewhere";
  options.prompt = "a cat";
  EXPECT_EQ(refusal(options), "");
  options.height = 479;
  EXPECT_THAT(refusal(options), HasSubstr("464 and 480"));
  options.height = 480;
  options.num_frames = 80;
  EXPECT_THAT(refusal(options), HasSubstr("77 and 81"));
}

TEST(GenerateOptions, FilesThatWouldOverwriteOneAnotherAreRefused) {
  GenerateOptions options;
  options.model = "somewhere";
  options.prompt = "a cat";
  options.output = "clip.gif";
  options.trace = "./clip.gif";
  EXPECT_THAT(refusal(options), HasSubstr("trace=./clip.gif is the same file as output=clip.gif"));
  options.trace = "clip.json";
  EXPECT_EQ(refusal(options), "");
  options.dump = "clip.gif";
  EXPECT_THAT(refusal(options), HasSubstr("dump=clip.gif is the same file as output=clip.gif"));
  options.dump = "numbers";
  options.latents = "./numbers/run.safetensors";
  EXPECT_THAT(refusal(options), HasSubstr("dump=numbers/run.safetensors is the same file as latents=./numbers/run"));
  options.latents.clear();
  options.trace.clear();
  options.output = options.dump = "frames";
  EXPECT_EQ(refusal(options), "");
}

}  // namespace
}  // namespace zoetrope::pipeline
