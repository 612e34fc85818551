#include "pipeline/generate_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "zoetrope/error.h"

namespace zoetrope::pipeline {
namespace {

using testing::HasSubstr;

TEST(GenerateOptions, DocumentationHoldsEveryKeyAsItIsDescribed) {
  GenerateOptions options;
  std::stringstream text;
  text << std::ifstream(ZOETROPE_SOURCE_DIR "/docs/configuration.md").rdbuf();
  const std::string table = describe_options(options).markdown();
  EXPECT_THAT(text.str(), HasSubstr(table)) << "docs/configuration.md should hold:\n" << table;
}

TEST(GenerateOptions, JaxNamesOfDegreesAreTheSameKeys) {
  GenerateOptions options;
  OptionSet set = describe_options(options);
  set.set_argument("ici_context_parallelism=4");
  EXPECT_EQ(options.context_parallelism, 4);
  EXPECT_THROW(set.set_argument("dcn_context_parallelism=2"), Error);
  set.set_argument("dcn_context_parallelism=1");
}

std::string refusal(const GenerateOptions& options) {
  try {
    check_options(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
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
}

}  // namespace
}  // namespace zoetrope::pipeline
