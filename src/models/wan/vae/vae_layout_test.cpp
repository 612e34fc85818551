#include "models/wan/vae/vae_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "zoetrope/error.h"

#include "io/checkpoint.h"

namespace zoetrope::wan {
namespace {

const std::filesystem::path kGolden = ZOETROPE_GOLDEN_DIR;

int64_t parameters(const TensorList& list) {
  int64_t sum = 0;
  for (const TensorSpec& spec : list) sum += spec.shape.size();
  return sum;
}

// Counts of the published file and of the reference's own test model (wan.md sections 1.1 and 9).
TEST(VaeLayout, CountsWhatThePublishedFileHolds) {
  const TensorList published = vae_tensor_list(VaeConfig{});
  EXPECT_EQ(published.size(), 194u);
  EXPECT_EQ(parameters(published), 126'892'531);
  EXPECT_EQ(coder_tensors(decoder_layout(VaeConfig{})).size(), 108u);

  VaeConfig tiny;
  tiny.base_dim = tiny.decoder_base_dim = 3;
  tiny.dim_mult = {1, 1, 1, 1};
  tiny.num_res_blocks = 1;
  EXPECT_EQ(vae_tensor_list(tiny).size(), 146u);
  EXPECT_EQ(parameters(vae_tensor_list(tiny)), 13'861);
}

TEST(VaeLayout, NamesExactlyTheTensorsOfTheRecordedCheckpoints) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden / "pipelines")) {
    const VaeConfig config = VaeConfig::load(entry.path() / "vae" / "config.json");
    if (config.is_residual) continue;
    SCOPED_TRACE(entry.path().string());
    ++seen;
    const auto file = io::Checkpoint::open(entry.path() / "vae", "diffusion_pytorch_model");
    std::map<std::string, std::string> expected, stored;
    for (const TensorSpec& spec : vae_tensor_list(config)) expected[spec.name] = spec.shape.to_string();
    for (const std::string& name : file.names()) stored[name] = file.info(name).shape.to_string();
    EXPECT_EQ(expected, stored);
  }
  EXPECT_GT(seen, 0);
}

TEST(VaeLayout, CountsFramesAsTheReferenceCutsThem) {
  const VaeConfig config;
  EXPECT_EQ(temporal_factor(config), 4);
  EXPECT_EQ(spatial_factor(config), 8);
  const std::map<int64_t, int64_t> latents{{1, 1}, {2, 1}, {4, 1}, {5, 2}, {8, 2}, {9, 3}, {81, 21}};
  for (const auto& [frames, expected] : latents) EXPECT_EQ(latent_frames(config, frames), expected) << frames;
  EXPECT_EQ(video_frames(config, 21), 81);
  EXPECT_EQ(video_frames(config, 1), 1);
}

std::string refusal(const VaeConfig& config) {
  try {
    vae_tensor_list(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(VaeLayout, RefusesWhatItCannotLayOut) {
  VaeConfig config;
  config.is_residual = true;
  config.patch_size = 2;
  EXPECT_THAT(refusal(config), testing::HasSubstr("Wan 2.2"));
  config = {};
  config.dim_mult = {1, 2};
  EXPECT_THAT(refusal(config), testing::HasSubstr("dim_mult"));
  config = {};
  config.temporal_downsample = {true, true, true};
  EXPECT_THAT(refusal(config), testing::HasSubstr("3 times"));
  config = {};
  config.decoder_base_dim = 1;
  config.dim_mult = {1, 1, 1, 1};
  EXPECT_THAT(refusal(config), testing::HasSubstr("halve"));
}

}  // namespace
}  // namespace zoetrope::wan
