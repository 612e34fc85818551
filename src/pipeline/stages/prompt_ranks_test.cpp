// Encoding prompts over ranks: what the files of the text encoder must be while it lasts.
#include "pipeline/stages/prompt_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(PromptRanks, FilesThatChangeAfterTheyWereOpenedAreAnError) {
  const ModelCopy copy("wan21_t2v");
  const ModelFolder model = ModelFolder::open(copy.path());
  GenerateOptions options;
  options.prompt = "a paper boat";
  options.threads = 1;
  const Callbacks callbacks;
  const RunPlan plan = plan_run(options, model);
  const auto encode = [&] {
    comm::run_ranks(1, [&](comm::Communicator& world) {
      trace::Timing timing;
      const parallel::ParallelLayout layout;
      encode_prompts_over_ranks({options, model, plan, layout, callbacks, timing, nullptr}, world);
    });
  };
  encode();
  const fs::path file = model.text_encoder.checkpoint()->files().front()->path();
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(10));
  EXPECT_THAT(error_of(encode), AllOf(HasSubstr(file.string()), HasSubstr("was changed while it was in use")));
}

}  // namespace
}  // namespace zoetrope::pipeline
