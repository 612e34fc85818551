// What the planner says that a run holds, against what it holds: whole runs of a reduced Wan model with random weights,
// each in a process of its own, because a peak never falls.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/project_folders.h"
#include "base/test_folder.h"
#include "io/media/video.h"
#include "pipeline/generate.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

// The configs of a published model, fewer and narrower layers: 0.56 GB of transformer in float32.
fs::path reduced_model(const fs::path& folder, const char* name) {
  const fs::path published = fs::path(kSourceFolder) / "configs" / name;
  fs::copy(published, folder, fs::copy_options::recursive);
  const auto change = [&](const char* component, const std::map<std::string, std::string>& values) {
    const fs::path file = folder / component / "config.json";
    const std::string text = json_with(file, values);
    std::ofstream(file) << text;
  };
  for (const char* expert : {"transformer", "transformer_2"}) {
    if (fs::exists(folder / expert)) {
      std::map<std::string, std::string> values{
          {"num_attention_heads", "8"}, {"ffn_dim", "4096"}, {"num_layers", "8"}, {"text_dim", "1024"}};
      const JsonObject json = JsonObject::load(folder / expert / "config.json");
      if (json.has("added_kv_proj_dim")) values["added_kv_proj_dim"] = "1024";
      if (json.has("vace_layers")) values["vace_layers"] = "[0, 5]";
      if (json.has("inject_face_latents_blocks")) values["inject_face_latents_blocks"] = "4";
      if (json.has("motion_encoder_size")) values["motion_encoder_size"] = "128";
      change(expert, values);
    }
  }
  change("text_encoder", {{"d_model", "1024"}, {"d_ff", "2560"}, {"num_layers", "2"}, {"num_heads", "16"}});
  change("vae", {{"base_dim", "32"}});
  if (fs::exists(folder / "image_encoder")) change("image_encoder", {{"num_hidden_layers", "3"}});
  return folder;
}

struct Figures {
  char component[32];
  int64_t peak, planned;
};
constexpr size_t kComponents = 4;  // text encoder, transformer, VAE, whole; and conditions where there are some

// Grey, of 256 × 288.
fs::path picture(const fs::path& file) {
  VideoFormat format;
  format.width = 288;
  format.height = 256;
  const auto writer = io::FrameWriter::open(file, format);
  const std::vector<uint8_t> pixels(static_cast<size_t>(3 * format.width * format.height), 128);
  writer->add_frame(pixels.data());
  writer->finish();
  return file;
}

size_t components_of(const pipeline::GenerateOptions& options) {
  return kComponents + (options.image.empty() && options.reference_images.empty() ? 0 : 1);
}

std::vector<Figures> run(const pipeline::GenerateOptions& options) {
  int ends[2];
  ZT_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Figures> figures;
    try {
      pipeline::GenerateResult result;
      pipeline::generate(options, {}, [&](pipeline::GenerateResult one) {
        if (one.number == 1) result = std::move(one);
      });
      const bool two = fs::exists(fs::path(options.model) / "transformer_2");
      if (two && result.timing.find("transformer_2") == std::string::npos) fail("the second expert was not used");
      for (const ComponentMemory& memory : result.memory) {
        Figures& f = figures.emplace_back(Figures{{}, memory.peak_bytes, memory.planned_bytes});
        memory.component.copy(f.component, sizeof f.component - 1);
      }
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    const size_t bytes = figures.size() * sizeof(Figures);
    const bool told = write(ends[1], figures.data(), bytes) == static_cast<ssize_t>(bytes);
    _exit(told && figures.size() == components_of(options) ? 0 : 1);
  }
  close(ends[1]);
  std::vector<Figures> figures(components_of(options));
  const size_t whole = figures.size() * sizeof(Figures);
  const ssize_t size = read(ends[0], figures.data(), whole);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  if (size != static_cast<ssize_t>(whole)) figures.clear();
  return figures;
}

// Of each component a tenth of its measured peak, and what code and library pages differ by from machine to machine.
void expect_as_planned(pipeline::GenerateOptions options, const char* model = "wan2.1_t2v_1.3b") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizer shadow memory would be counted as ours";
#endif
  constexpr int64_t kCode = 10'000'000;
  const TestFolder folder;
  options.model = reduced_model(folder / "model", model).string();
  options.weights = WeightSource::kRandom;
  options.prompt = "a red cat on a market";
  options.output = (folder / "a.gif").string();
  // Several videos, segments and control are as large at half of the pixels as one video.
  const bool several = options.batch_size > 1 || !options.pose_video.empty() || !options.reference_images.empty();
  options.height = several ? 176 : 256;
  options.width = several ? 208 : 288;
  if (options.pose_video.empty()) options.num_frames = 5;  // else those of the video
  options.num_inference_steps = 2;
  options.threads = 2;
  const std::vector<Figures> figures = run(options);
  ASSERT_EQ(figures.size(), components_of(options));
  for (const Figures& f : figures) {
    fmt::print("{:<14} measured {:.3f} GB, planned {:.3f} GB\n", f.component, static_cast<double>(f.peak) * 1e-9,
               static_cast<double>(f.planned) * 1e-9);
    EXPECT_LE(std::abs(f.planned - f.peak), f.peak / 10 + kCode) << f.component;
  }
}

TEST(Planned, Float32) {
  pipeline::GenerateOptions options;
  options.dtype = DType::kF32;
  expect_as_planned(options);
}

TEST(Planned, BFloat16) {
  pipeline::GenerateOptions options;
  options.text_encoder_dtype = options.vae_dtype = DType::kBF16;
  expect_as_planned(options);
}

TEST(Planned, TwoRanksOfOneProcess) {
  pipeline::GenerateOptions options;
  options.ranks = 2;
  options.strategy.ulysses_shards = 2;
  expect_as_planned(options);
}

// Both are used; a second one in memory would be 0.28 GB on top of 0.4.
TEST(Planned, TwoExpertsTakeTurns) {
  pipeline::GenerateOptions options;
  options.vae_dtype = DType::kBF16;
  options.boundary_ratio = 0.9;
  options.guidance_scale = 1;
  expect_as_planned(options, "wan2.2_t2v_a14b");
}

TEST(Planned, AnImageAndItsEncoder) {
  pipeline::GenerateOptions options;
  const TestFolder folder;
  options.image = picture(folder / "image.png").string();
  options.dtype = DType::kF32;
  expect_as_planned(options, "wan2.1_i2v_14b_480p");
}

TEST(Planned, ControlLayersAndAReference) {
  pipeline::GenerateOptions options;
  const TestFolder folder;
  options.reference_images = {picture(folder / "image.png").string()};
  options.ranks = 2;
  expect_as_planned(options, "wan2.1_vace_1.3b");
}

TEST(Planned, TilesAndADump) {
  pipeline::GenerateOptions options;
  options.vae_tiling = true;
  options.guidance_scale = 1;
  const TestFolder folder;
  options.dump = (folder / "dump").string();
  expect_as_planned(options);
}

TEST(Planned, ABatchOfVideos) {
  pipeline::GenerateOptions options;
  options.num_videos = options.batch_size = 3;
  options.guidance_scale = 1;
  expect_as_planned(options);
}

TEST(Planned, SegmentsOfABatch) {
  pipeline::GenerateOptions options;
  const TestFolder folder;
  fs::create_directory(folder / "video");
  for (int i = 0; i < 9; ++i) picture(folder / "video" / fmt::format("{}.png", i));
  options.image = (folder / "video" / "0.png").string();
  options.pose_video = options.face_video = (folder / "video").string();
  options.segment_frame_length = 5;
  options.num_videos = options.batch_size = 2;
  options.guidance_scale = 1;
  options.ranks = 2;
  expect_as_planned(options, "wan2.2_animate_14b");
}

}  // namespace
}  // namespace zoetrope
