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
  GenerateOptions options = small_run();
  options.keep_weights = KeepWeights::kTransformer;
  OpenModel model(options);
  const auto loads = [&](std::optional<double> weight_memory) {
    options.weight_memory = weight_memory;
    const Loads of_run;
    pipeline::Run(model, {options}).run_on_threads({{}}, of_run.callbacks);
    return of_run.components;
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
