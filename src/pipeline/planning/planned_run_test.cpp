#include "pipeline/planning/planned_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/project_folders.h"
#include "base/test_folder.h"
#include "io/media/video.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/planning/layout_question.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

GenerateOptions options_for(const char* model, const std::vector<std::string>& words) {
  GenerateOptions options;
  options.num_frames = 5;
  OptionSet set = describe_options(options);
  for (const std::string& word : words) set.set_argument(word);
  options.model = recorded_model(model).string();
  return options;
}

PlannedRun planned(const char* model, const std::vector<std::string>& words) {
  return PlannedRun(options_for(model, words));
}

std::string refusal(const char* model, const std::vector<std::string>& words) {
  return error_of([&] { planned(model, words); });
}

std::string picture(const char* key) {
  return fmt::format("{}={}", key, (recorded_model("wan21_i2v") / "inputs" / "image.png").string());
}

std::string lora(const char* key) {
  return fmt::format("{}={}", key,
                     (std::filesystem::path(kSourceFolder) / "tests/golden/loras/peft.safetensors").string());
}

planner::Bytes peak_of(const PlannedRun& run) { return memory_plan(run.memory).peak().total(); }

TEST(PlannedRun, TheSizeFollowsThePicture) {
  const PlannedRun run = planned("wan21_i2v", {picture("image"), "max_area=2560"});
  EXPECT_EQ(run.options.width, 48);
  EXPECT_EQ(run.options.height, 32);
  const PlannedRun same = planned("wan21_i2v", {picture("image"), "width=48", "height=32"});
  EXPECT_EQ(run.plan.tokens, same.plan.tokens);
  EXPECT_EQ(peak_of(run).count(), peak_of(same).count());
  EXPECT_LT(peak_of(run).count(), peak_of(planned("wan21_i2v", {picture("image")})).count());
  EXPECT_THAT(refusal("wan21_i2v", {"max_area=2560"}), StartsWith("max_area: follows the shape of image"));
  EXPECT_THAT(refusal("wan21_i2v", {"max_area=2560", "image=nowhere.png"}), HasSubstr("nowhere.png"));
}

TEST(PlannedRun, InputsAreThoseOfTheModelAndMayBeMissing) {
  EXPECT_THAT(refusal("wan21_t2v", {"image=cat.png"}),
              StartsWith("image: this model (text to video) takes a prompt alone"));
  EXPECT_THAT(refusal("wan21_vace", {"mask=mask.mp4"}), StartsWith("mask: masks the frames of control_video"));
  // Nothing of a picture is read but the shape that max_area follows.
  const auto inputs = [](const PlannedRun& run) { return run_size(run.memory).inputs_bytes; };
  EXPECT_EQ(inputs(planned("wan21_i2v", {})), 0);
  EXPECT_GT(inputs(planned("wan21_i2v", {"image=cat.png"})), 0);
  EXPECT_FALSE(run_size(planned("wan21_vace", {}).memory).control_video);
  EXPECT_TRUE(run_size(planned("wan21_vace", {"control_video=cat.mp4"}).memory).control_video);
}

TEST(PlannedRun, LoraFilesAreCountedAndRefusedAsInARun) {
  const PlannedRun plain = planned("wan21_t2v", {}), merged = planned("wan21_t2v", {lora("lora")});
  EXPECT_EQ(plain.memory.configs.merge_scratch, 0);
  EXPECT_EQ(merged.memory.configs.merge_scratch, model_configs(ModelFolder::open(merged.options)).merge_scratch);
  EXPECT_GT(merged.memory.configs.merge_scratch, 0);
  EXPECT_THAT(lora_lines(merged.model),
              ElementsAre(EndsWith("peft.safetensors: strength 1, 20 tensors of transformer, ranks 2 to 4")));
  EXPECT_THAT(refusal("wan21_t2v", {lora("lora_low")}), AllOf(StartsWith("lora_low"), HasSubstr("no two experts")));
  EXPECT_THAT(refusal("wan21_t2v", {"lora=nowhere.safetensors"}), HasSubstr("nowhere.safetensors"));
  EXPECT_THAT(refusal("wan21_t2v", {"lora=a.safetensors:strong"}), HasSubstr("not a number"));
}

// What is decoded before it is multiplied takes its file and a buffer; all else is used in the file.
TEST(PlannedRun, ATextEncoderIsAsItsFileStoresIt) {
  const std::filesystem::path files = std::filesystem::path(kSourceFolder) / "tests/golden/weights/umt5";
  const auto bytes_a_weight = [&](const char* file, const char* dtype) {
    const PlannedRun run = planned("wan21_t2v", {fmt::format("text_encoder={}", (files / file).string()),
                                                 fmt::format("text_encoder_dtype={}", dtype)});
    const auto bytes = workload_by_layout(run.memory)(run.memory.layout, 1).text.weights.in_flight.count();
    const encoders::TextEncoderConfig& config = run.memory.configs.text_encoder;
    return static_cast<double>(bytes) / static_cast<double>(config.d_model * 3 * config.d_ff);
  };
  constexpr double kBuffer = 2.0 / 3;  // wi_0 and wi_1, of three alike
  constexpr double kNorms = 0.1;       // and what else is no matrix
  EXPECT_NEAR(bytes_a_weight("wan_bf16.safetensors", "f32"), 2, kNorms);
  EXPECT_NEAR(bytes_a_weight("comfy_fp16.safetensors", "f32"), 2 + 4 * kBuffer, kNorms);
  EXPECT_NEAR(bytes_a_weight("comfy_fp16.safetensors", "bf16"), 2 + 2 * kBuffer, kNorms);
  EXPECT_NEAR(bytes_a_weight("comfy_fp8_scaled.safetensors", "bf16"), 1 + 2 * kBuffer, kNorms);
  EXPECT_NEAR(bytes_a_weight("umt5_q8_0.gguf", "bf16"), 34.0 / 32 + 2 * kBuffer, kNorms);
}

TEST(PlannedRun, APromptHasItsTokens) {
  EXPECT_TRUE(planned("wan21_t2v", {}).memory.prompt_tokens.empty());
  const std::vector<int64_t> tokens = planned("wan21_t2v", {"prompt=a red cat"}).memory.prompt_tokens;
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_GT(tokens[0], 1);
  EXPECT_EQ(tokens[1], 1);  // </s>
  EXPECT_THAT(refusal("wan21_t2v", {"negative_prompt=grey"}), StartsWith("negative_prompt"));
}

TEST(PlannedRun, RandomWeightsAreNotMapped) {
  EXPECT_TRUE(planned("wan21_t2v", {}).memory.configs.mapped);
  EXPECT_FALSE(planned("wan21_t2v", {"weights=random"}).memory.configs.mapped);
}

// Of a folder with weights nothing else is assumed than a run finds when it opens them.
TEST(PlannedRun, WeightsAreAsTheFolderStoresThem) {
  for (const char* model : {"wan21_t2v", "wan21_i2v", "wan22_t2v"}) {
    SCOPED_TRACE(model);
    const PlannedRun run = planned(model, {});
    const wan::ModelConfigs opened = model_configs(ModelFolder::open(run.options));
    EXPECT_GT(run.memory.configs.transformer_file_bytes, 0);
    EXPECT_EQ(run.memory.configs.transformer_file_bytes, opened.transformer_file_bytes);
    EXPECT_EQ(run.memory.configs.stored.transformer, opened.stored.transformer);
    EXPECT_EQ(run.memory.configs.stored.text_encoder, opened.stored.text_encoder);
    EXPECT_EQ(run.memory.configs.text_layers, opened.text_layers);
    EXPECT_EQ(run.memory.configs.stored.vae, opened.stored.vae);
    EXPECT_EQ(run.memory.configs.stored.image_encoder, opened.stored.image_encoder);
    const PlannedRun part = planned(model, {"layers=1"});
    const int64_t used = part.memory.configs.transformer_file_bytes;
    EXPECT_EQ(used, model_configs(ModelFolder::open(part.options)).transformer_file_bytes);
    EXPECT_LT(used, opened.transformer_file_bytes);
    EXPECT_GT(used, opened.transformer_file_bytes / 2);  // of two layers, and what is in none
  }
  const PlannedRun tiny = [] {
    GenerateOptions options = options_for("wan21_t2v", {});
    options.model = (std::filesystem::path(kSourceFolder) / "demo/wan-tiny").string();
    return PlannedRun(options);
  }();
  EXPECT_EQ(tiny.memory.configs.stored.transformer, DType::kBF16);
  // Of configs alone as they are published.
  const auto published = [](const char* name) {
    GenerateOptions options = options_for("wan21_t2v", {});
    options.model = (std::filesystem::path(kSourceFolder) / "configs" / name).string();
    return PlannedRun(options).memory.configs;
  };
  EXPECT_EQ(published("wan2.1_t2v_1.3b").stored.text_encoder, DType::kF32);
  EXPECT_EQ(published("wan2.2_t2v_a14b").stored.text_encoder, DType::kBF16);
  EXPECT_EQ(published("wan2.2_t2v_a14b").stored.transformer, DType::kF32);
  EXPECT_EQ(published("wan2.2_t2v_a14b").transformer_file_bytes, 0);
}

// What is packed again for each step is packed from how it is stored, here bf16 and not the float32 of formulas.
TEST(PlannedRun, WeightMemoryMayBeWhatARunTakes) {
  GenerateOptions options = options_for("wan21_t2v", {});
  options.model = (std::filesystem::path(kSourceFolder) / "demo/wan-tiny").string();
  MemoryQuestion question{options, model_configs(ModelFolder::open(options))};
  const int64_t least = transformer_memory(question).least;
  question.configs.stored.transformer = DType::kF32;
  ASSERT_LT(least + 1, transformer_memory(question).least);
  options.weight_memory = static_cast<double>(least + 1) * 1e-9;
  EXPECT_EQ(error_of([&] { check_weight_memory({options, model_configs(ModelFolder::open(options))}); }), "no error");
  EXPECT_EQ(error_of([&] { PlannedRun{options}; }), "no error");
  options.weight_memory = static_cast<double>(least - 1) * 1e-9;
  const std::string refusal = error_of([&] { PlannedRun{options}; });
  EXPECT_THAT(refusal, HasSubstr("too small"));
  EXPECT_EQ(refusal, error_of([&] { check_weight_memory({options, model_configs(ModelFolder::open(options))}); }));
}

// Indices without the files that they name: what a download of *.json brings.
TEST(PlannedRun, WeightsThatAreStillToComeArePublishedOnes) {
  const TestFolder folder;
  std::filesystem::copy(recorded_model("wan21_t2v"), folder.path(), std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
  GenerateOptions options = options_for("wan21_t2v", {});
  options.model = folder.path().string();
  const PlannedRun run(options);
  EXPECT_EQ(run.memory.configs.transformer_file_bytes, 0);
  EXPECT_EQ(run.memory.configs.stored.transformer, DType::kF32);
  EXPECT_THAT(run.missing_files, testing::Contains("transformer=" + (folder / "transformer").string()));
  EXPECT_THAT(run.missing_files, testing::Not(testing::Contains(HasSubstr("vae"))));  // of which there is no index
}

TEST(PlannedRun, KeysMayNameFoldersOfWeights) {
  for (const std::string component : {"transformer", "text_encoder", "vae"}) {
    SCOPED_TRACE(component);
    const PlannedRun plain = planned("wan21_t2v", {});
    const std::string folder = plain.options.model + "/" + component;
    const PlannedRun named = planned("wan21_t2v", {component + "=" + folder});
    EXPECT_TRUE(named.missing_files.empty());
    EXPECT_EQ(peak_of(named), peak_of(plain));
  }
}

TEST(PlannedRun, FewerLayersNeedLessMemoryAndTime) {
  const PlannedRun whole = planned("wan22_t2v", {}), cut = planned("wan22_t2v", {"layers=1"});
  const auto question = [](const PlannedRun& run) { return run_question(run.plan, run.model, run.memory, 1); };
  EXPECT_EQ(question(cut).work.layers, 1);
  EXPECT_EQ(2 * question(cut).work.layers, question(whole).work.layers);
  EXPECT_LT(question(cut).work.weights_read.count(), question(whole).work.weights_read.count());
  const auto denoising = [](const PlannedRun& run) {
    int64_t most = 0;
    for (const planner::MemoryPhase& phase : memory_plan(run.memory).phases)
      if (phase.name.starts_with("denois")) most = std::max(most, phase.total().count());
    return most;
  };
  EXPECT_GT(denoising(cut), 0);
  EXPECT_LT(denoising(cut), denoising(whole));
  EXPECT_THAT(cut.plan.notes, ElementsAre("layers=1: 1 of 2 layers are computed, so the video is not the model's"));
  EXPECT_THAT(refusal("wan22_t2v", {"layers=3"}), AllOf(HasSubstr("layers=3"), HasSubstr("the model has only 2")));
}

TEST(PlannedRun, TheRunThatACacheIsComparedWithIsPriced) {
  const auto steps = [](std::vector<std::string> words) {
    for (const char* word : {"num_inference_steps=10", "cache=cfg"}) words.emplace_back(word);
    const PlannedRun run = planned("wan21_t2v", words);
    return run_question(run.plan, run.model, run.memory, 1).work.steps;
  };
  EXPECT_LT(steps({}), 10);
  EXPECT_EQ(steps({"cache_compare=true"}), steps({}) + 10);
}

TEST(PlannedRun, KeysThatChangeNothingOfAPlanAreRefused) {
  const auto refused = [](const std::string& word) {
    GenerateOptions options;
    OptionSet set = describe_options(options);
    set.set_argument(word);
    return error_of([&] { refuse_keys_of_running(set, "inspect"); });
  };
  for (const char* word : {"seed=3", "weights_seed=3", "fps=8", "latents=a", "comm_timeout=3", "trace=t.json",
                           "mask_padding_tokens=true"}) {
    const std::string key(word, std::string_view(word).find('='));
    EXPECT_THAT(refused(word), StartsWith(key + ": means nothing to inspect")) << word;
  }
  EXPECT_THAT(refused("conditioning_scale=1"), StartsWith("conditioning_scale: means nothing"));
  for (const char* word : {"height=32", "dump=d", "lora=a", "weight_cache=c", "cache=sen", "max_area=2560",
                           "prompt=a cat", "output=a.gif", "prompts=a.txt", "grid=a.gif", "compare_one_rank=true"})
    EXPECT_EQ(refused(word), "no error") << word;
}

TEST(PlannedRun, FramesOfAGridAreCounted) {
  const PlannedRun run = planned("wan21_t2v", {"num_videos=3", "grid=all.png"});
  EXPECT_EQ(run.memory.grid_frames, 3 * 5 * run.options.height * run.options.width * 3);
  EXPECT_EQ(peak_of(run), peak_of(planned("wan21_t2v", {"num_videos=3"})) + planner::Bytes(run.memory.grid_frames));
  const TestFolder folder;
  folder.write("prompts.txt", "a cat\na dog\n");
  const std::string prompts = "prompts=" + (folder / "prompts.txt").string();
  EXPECT_EQ(planned("wan21_t2v", {prompts, "grid=all.png"}).memory.grid_frames, run.memory.grid_frames / 3 * 2);
  // As generate refuses them.
  EXPECT_THAT(refusal("wan21_t2v", {"grid=all.png"}), StartsWith("grid=all.png: shows several videos"));
  EXPECT_THAT(refusal("wan21_t2v", {prompts, "prompt=a cat"}), StartsWith("prompts: gives every prompt"));
  EXPECT_THAT(refusal("wan21_t2v", {"num_videos=2", "compare_one_rank=true"}), StartsWith("compare_one_rank"));
}

TEST(PlannedRun, TheEncoderIsCounted) {
  const auto decoding = [](const std::string& output) {
    const planner::MemoryPlan plan = memory_plan(planned("wan21_t2v", {output}).memory);
    return plan.phases.back().total();  // the VAE decodes
  };
  const planner::Bytes pictures = decoding("output=frames");
  for (const char* file : {"a.mp4", "a.webm", "a.webp"}) {
    const PlannedRun run = planned("wan21_t2v", {std::string("output=") + file});
    const planner::Bytes encoder(io::encoder_bytes(file, video_format(run.options)));
    EXPECT_GT(encoder, planner::Bytes(5'000'000)) << file;
    EXPECT_EQ(decoding(std::string("output=") + file), pictures + encoder) << file;
  }
}

// A model's YAML says how its videos are written, too.
TEST(PlannedRun, KeysOfAFileAreNotMeant) {
  const TestFolder folder;
  folder.write("model.yml", "fps: 16\nheight: 32\n");
  GenerateOptions options;
  OptionSet set = describe_options(options);
  set.load_yaml(folder / "model.yml");
  refuse_keys_of_running(set, "plan");
  EXPECT_EQ(options.fps, 16);
}

}  // namespace
}  // namespace zoetrope::pipeline
