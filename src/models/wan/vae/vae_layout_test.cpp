#include "models/wan/vae/vae_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "zoetrope/error.h"

#include "io/checkpoint.h"
#include "models/wan/vae/vae_test_util.h"

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

TEST(VaeLayout, CountsWhatThePublishedFileOfTheSecondGenerationHolds) {
  const VaeConfig config = published_residual_config();
  const TensorList published = vae_tensor_list(config);
  EXPECT_EQ(published.size(), 196u);
  EXPECT_EQ(parameters(published), 704'688'668);
  EXPECT_EQ(spatial_factor(config), 16);
  EXPECT_EQ(temporal_factor(config), 4);
  EXPECT_EQ(latent_frames(config, 121), 31);
  EXPECT_EQ(pixel_channels(config, config.out_channels), 3);
}

// wan.md section 4.3: 160→160 a plain mean, 160→320 and 320→640 the mean of a sub-frame, 640→640 as it is; 1024→1024
// replication, 1024→512 of the input's channels one for each row.
TEST(VaeLayout, GroupsTheChannelsOfShortcuts) {
  const CoderLayout encoder = encoder_layout(published_residual_config()),
                    decoder = decoder_layout(published_residual_config());
  struct Expected {
    int64_t large, small, time, space, group;
  };
  const Expected down[] = {{160, 160, 1, 2, 4}, {160, 320, 2, 2, 4}, {320, 640, 2, 2, 4}, {640, 640, 1, 1, 1}};
  const Expected up[] = {{1024, 1024, 2, 2, 8}, {1024, 1024, 2, 2, 8}, {512, 1024, 1, 2, 2}};
  const auto expect = [](const Expected& e, const ShortcutLayout& cut) {
    EXPECT_EQ(cut.large, e.large);
    EXPECT_EQ(cut.small, e.small);
    EXPECT_EQ(cut.time, e.time);
    EXPECT_EQ(cut.space, e.space);
    EXPECT_EQ(cut.group(), e.group);
  };
  ASSERT_EQ(encoder.stages.size(), 4u);
  ASSERT_EQ(decoder.stages.size(), 4u);
  for (size_t i = 0; i < 4; ++i) expect(down[i], *encoder.stages[i].shortcut);
  for (size_t i = 0; i < 3; ++i) expect(up[i], *decoder.stages[i].shortcut);
  EXPECT_FALSE(decoder.stages[3].shortcut);
  EXPECT_EQ(encoder.stages[1].shortcut->small_channel(7, 1, 0, 1), 15);
  EXPECT_EQ(encoder.stages[0].shortcut->small_channel(7, 0, 1, 1), 7);
  EXPECT_EQ(decoder.stages[0].shortcut->small_channel(7, 1, 0, 1), 7);
  EXPECT_EQ(decoder.stages[2].shortcut->small_channel(7, 0, 1, 0), 15);
  EXPECT_EQ(decoder.stages[2].shortcut->small_channel(7, 0, 0, 1), 14);
}

TEST(VaeLayout, NamesExactlyTheTensorsOfTheRecordedCheckpoints) {
  std::set<bool> seen;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden / "pipelines")) {
    const VaeConfig config = VaeConfig::load(entry.path() / "vae" / "config.json");
    SCOPED_TRACE(entry.path().string());
    seen.insert(config.is_residual);
    const auto file = io::Checkpoint::open(entry.path() / "vae", "diffusion_pytorch_model");
    std::map<std::string, std::string> expected, stored;
    for (const TensorSpec& spec : vae_tensor_list(config)) expected[spec.name] = spec.shape.to_string();
    for (const std::string& name : file.names()) stored[name] = file.info(name).shape.to_string();
    EXPECT_EQ(expected, stored);
  }
  EXPECT_EQ(seen.size(), 2u);
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
  VaeConfig config = published_residual_config();
  config.dim_mult = {1, 2, 4, 5};  // 640 channels do not make 800 by averaging
  EXPECT_THAT(refusal(config), testing::HasSubstr("800"));
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
