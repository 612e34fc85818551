#include "pipeline/model_files/merged_loras.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/project_folders.h"
#include "models/lora/lora.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/planning/admission.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

GenerateOptions options_for(const std::string& model) {
  GenerateOptions options;
  options.model = recorded_model(model).string();
  return options;
}

std::string recorded_lora(const std::string& name) {
  return (std::filesystem::path(kSourceFolder) / "tests/golden/loras" / (name + ".safetensors")).string();
}

TEST(MergedLoras, FilesAreMergedIntoTheTransformer) {
  GenerateOptions options = options_for("wan21_t2v");
  const ModelFolder plain = ModelFolder::open(options);
  options.lora = {{recorded_lora("peft"), 0.8}, {recorded_lora("original"), 1}};
  const ModelFolder merged = ModelFolder::open(options);
  ASSERT_EQ(merged.experts[0].loras.size(), 2u);
  EXPECT_THAT(lora_lines(merged),
              ElementsAre(EndsWith("peft.safetensors: strength 0.8, 20 tensors of transformer, ranks 2 to 4"),
                          EndsWith("original.safetensors: strength 1, 14 tensors of transformer, ranks 4 to 5")));
  EXPECT_TRUE(lora_lines(plain).empty());
  const auto values = [](const ModelFolder& model, const char* name) {
    const auto source = model.experts[0].weights.source(1);
    Tensor tensor(DType::kF32, source->info(name).shape);
    source->read(name, tensor);
    return std::vector<float>(tensor.data<float>(), tensor.data<float>() + tensor.size());
  };
  EXPECT_NE(values(merged, "blocks.0.attn1.to_q.weight"), values(plain, "blocks.0.attn1.to_q.weight"));
  EXPECT_EQ(values(merged, "blocks.0.attn1.norm_q.weight"), values(plain, "blocks.0.attn1.norm_q.weight"));
  EXPECT_NE(fingerprint(merged), fingerprint(plain));
  EXPECT_NE(merged.experts[0].weights.source(1)->identity(), plain.experts[0].weights.source(1)->identity());
}

TEST(MergedLoras, ExpertsHaveTheirOwn) {
  GenerateOptions options = options_for("wan22_t2v");
  // A file for a model of this shape, random.
  options.weights = WeightSource::kRandom;
  const TestFolder folder;
  const Tensor change(DType::kF32, {32});
  for (const char* name : {"both", "high", "low"}) {
    io::SafetensorsWriter writer;
    writer.add("diffusion_model.blocks.0.ffn.2.diff_b", change);
    writer.write(folder / name);
  }
  options.lora = {{folder / "both", 0.1}};
  options.lora_high = {{folder / "high", 0.2}};
  options.lora_low = {{folder / "low", 0.3}};
  const ModelFolder model = ModelFolder::open(options);
  ASSERT_EQ(model.experts[0].config.inner_dim(), 32);
  const char* own[] = {"high", "low"};
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<lora::Lora>& loras = model.experts[i].loras;
    ASSERT_EQ(loras.size(), 2u);
    EXPECT_EQ(loras[0].file.filename(), "both");
    EXPECT_EQ(loras[1].file.filename(), own[i]);
  }
  EXPECT_THAT(lora_lines(model),
              AllOf(Contains(EndsWith("high: strength 0.2, 1 tensors of transformer, no product")),
                    Contains(EndsWith("low: strength 0.3, 1 tensors of transformer_2, no product"))));
}

TEST(MergedLoras, ANameOfTheOtherExpertIsRefused) {
  GenerateOptions options = options_for("wan22_t2v");
  options.weights = WeightSource::kRandom;
  const TestFolder folder;
  for (const char* name : {"a_HIGH_fp16.safetensors", "low_noise_model.safetensors"}) {
    const Tensor bias(DType::kF32, {32});
    io::SafetensorsWriter writer;
    writer.add("diffusion_model.blocks.0.ffn.2.diff_b", bias);
    writer.write(folder / name);
  }
  const LoraFile high{folder / "a_HIGH_fp16.safetensors", 1}, low{folder / "low_noise_model.safetensors", 1};
  options.lora_high = {high};
  options.lora_low = {low};
  EXPECT_THAT(lora_lines(ModelFolder::open(options)), testing::Each(testing::Not(HasSubstr("Warning"))));
  options.lora_high = {low};
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }),
              AllOf(HasSubstr("lora_high: "), HasSubstr("is of low noise by its name; name it in lora_low=")));
  options.lora_high = {};
  options.lora_low = {high};
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }),
              AllOf(HasSubstr("lora_low: "), HasSubstr("is of high noise by its name; name it in lora_high=")));
  options.lora_low = {};
  options.lora = {low};
  EXPECT_THAT(lora_lines(ModelFolder::open(options)),
              testing::Contains(AllOf(testing::StartsWith("Warning: "), HasSubstr("low noise by its name, but lora= "),
                                      HasSubstr("; lora_low= merges it into one")))
                  .Times(1));
}

// "low" describes the style here: for either expert, without a word about the other.
TEST(MergedLoras, AWordOfAnotherMeaningNamesNoExpert) {
  GenerateOptions options = options_for("wan22_t2v");
  options.weights = WeightSource::kRandom;
  const TestFolder folder;
  const Tensor bias(DType::kF32, {32});
  io::SafetensorsWriter writer;
  writer.add("diffusion_model.blocks.0.ffn.2.diff_b", bias);
  writer.write(folder / "wan22_low_poly_style.safetensors");
  options.lora = options.lora_high = {{folder / "wan22_low_poly_style.safetensors", 1}};
  EXPECT_THAT(lora_lines(ModelFolder::open(options)), testing::Each(testing::Not(HasSubstr("Warning"))));
}

TEST(MergedLoras, KeysOfExpertsNeedTwo) {
  GenerateOptions options = options_for("wan21_t2v");
  options.lora_low = {{recorded_lora("peft"), 1}};
  EXPECT_THAT(error_of([&] { ModelFolder::open(options); }), AllOf(HasSubstr("lora_low"), HasSubstr("lora=")));
}

// The sum of a tensor and its change takes memory in addition to the file's pages.
TEST(MergedLoras, MemoryIsCounted) {
  GenerateOptions options = options_for("wan21_t2v");
  const auto in_flight = [&] {
    const ModelFolder model = ModelFolder::open(options);
    wan::RunSize size;
    size.height = size.width = 64;
    size.frames = 5;
    size.threads = 2;
    return wan::workload(model_configs(model), size, {}).experts[0].weights.in_flight.count();
  };
  const int64_t without = in_flight();
  options.lora = {{recorded_lora("peft"), 1}};
  // Stored as F32: as much again, and factors of rank 4 for [48, 64] of each thread.
  EXPECT_EQ(in_flight(), 2 * without + 2 * 4 * io::merge_scratch_elements(48, 64, 4));
}

}  // namespace
}  // namespace zoetrope::pipeline
