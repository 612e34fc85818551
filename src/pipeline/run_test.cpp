#include "pipeline/run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/project_folders.h"
#include "pipeline/planning/run_workload.h"

namespace zoetrope::pipeline {
namespace {

TEST(Forecast, SaysWhetherWeightsAreStreamed) {
  GenerateOptions options;
  options.model = (std::filesystem::path(kSourceFolder) / "demo/wan-tiny").string();
  options.prompt = "a red cat";
  options.height = options.width = 32;
  options.num_frames = 5;
  options.num_inference_steps = 2;
  const auto streams = [&] {
    OpenModel model(options);
    const Forecast forecast = pipeline::Run(model, {options}).forecast(1);
    EXPECT_FALSE(forecast.short_of_memory);
    return forecast.streams;
  };
  EXPECT_FALSE(streams());
  const TransformerMemory memory = transformer_memory(OpenModel(options).memory);
  ASSERT_LT(memory.least + 100'000, memory.asked);
  options.weight_memory = static_cast<double>(memory.least + 100'000) * 1e-9;
  EXPECT_TRUE(streams());
  options.weight_memory = 1000;  // all of them fit
  EXPECT_FALSE(streams());
  options.weight_memory.reset();
  options.weights_in_memory = WeightsInMemory::kAsStored;
  EXPECT_TRUE(streams());
}

}  // namespace
}  // namespace zoetrope::pipeline
