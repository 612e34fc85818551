// Which kept weights a run takes, and which it reads again.
#include "pipeline/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "pipeline/run.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::ElementsAre;

TEST(ExpertWeights, AreReadAgainWhereTheRunIsPlannedWithOtherMemory) {
  GenerateOptions options;
  options.model = recorded_model("wan21_t2v").string();
  options.prompt = "a red cat";
  options.height = 32;
  options.width = 48;
  options.num_frames = 5;
  options.num_inference_steps = 1;
  options.threads = 1;
  options.keep_weights = KeepWeights::kTransformer;
  OpenModel model(options);
  const auto loads = [&](std::optional<double> weight_memory) {
    options.weight_memory = weight_memory;
    std::vector<std::string> components;
    Callbacks callbacks;
    callbacks.load = [&](const std::string& component, int64_t done, int64_t total) {
      if (done == total && total > 0) components.push_back(component);
    };
    pipeline::Run(model, {options}).run_on_threads({{}}, callbacks);
    return components;
  };
  EXPECT_THAT(loads({}), ElementsAre("transformer"));
  EXPECT_THAT(loads({}), ElementsAre());
  EXPECT_THAT(loads(0.001), ElementsAre("transformer"));
  EXPECT_THAT(loads(0.001), ElementsAre());
  EXPECT_THAT(loads(0.002), ElementsAre());
  EXPECT_THAT(loads({}), ElementsAre("transformer"));
}

}  // namespace
}  // namespace zoetrope::pipeline
