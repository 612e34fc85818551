#include "models/wan/vae/vae_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "zoetrope/error.h"

#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

TEST(VaeLayout, SizesOfTheSecondGeneration) {
  const VaeConfig config = published_residual_config();
  EXPECT_EQ(config.spatial_factor(), 16);
  EXPECT_EQ(config.temporal_factor(), 4);
  EXPECT_EQ(config.latent_frames(121), 31);
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

TEST(VaeLayout, CountsFramesAsTheReferenceCutsThem) {
  const VaeConfig config;
  EXPECT_EQ(config.temporal_factor(), 4);
  EXPECT_EQ(config.spatial_factor(), 8);
  const std::map<int64_t, int64_t> latents{{1, 1}, {2, 1}, {4, 1}, {5, 2}, {8, 2}, {9, 3}, {81, 21}};
  for (const auto& [frames, expected] : latents) EXPECT_EQ(config.latent_frames(frames), expected) << frames;
  EXPECT_EQ(config.video_frames(21), 81);
  EXPECT_EQ(config.video_frames(1), 1);
}

std::string refusal(const VaeConfig& config) {
  try {
    encoder_layout(config);
    decoder_layout(config);
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
