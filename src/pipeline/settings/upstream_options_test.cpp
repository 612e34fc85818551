#include "pipeline/settings/upstream_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "zoetrope/error.h"

#include "base/test_folder.h"
#include "pipeline/outputs/videos.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

struct Upstream {
  GenerateOptions options;
  OptionSet set = describe_options(options);

  explicit Upstream(const Words& words = {}) {
    for (const std::string& word : words) set.set_argument(word);
  }
};

std::string refusal(const Words& words) {
  return error_of([&] { Upstream given(words); });
}

TEST(UpstreamOptions, DegreesInsideAndAcrossSlicesMultiply) {
  const auto context = [](const Words& words) { return Upstream(words).options.context_parallelism; };
  EXPECT_EQ(context({"ici_context_parallelism=4"}), 4);
  EXPECT_EQ(context({"ici_context_parallelism=4", "dcn_context_parallelism=2"}), 8);
  EXPECT_EQ(context({"dcn_context_parallelism=2", "ici_context_parallelism=4"}), 8);
  EXPECT_EQ(context({"dcn_context_parallelism=-1", "ici_context_parallelism=4"}), -1);
  EXPECT_EQ(context({"dcn_context_parallelism=1", "ici_context_parallelism=-1"}), -1);
  EXPECT_EQ(context({"context_parallelism=4", "dcn_context_parallelism=1"}), 4);
  EXPECT_EQ(context({"ici_context_parallelism=4", "dcn_context_parallelism=2", "context_parallelism=2"}), 2);
  EXPECT_EQ(Upstream({"dcn_data_parallelism=1"}).options.data_parallelism, std::nullopt);
  EXPECT_EQ(Upstream({"dcn_data_parallelism=1", "ici_data_parallelism=1"}).options.data_parallelism, 1);
  EXPECT_EQ(Upstream({"dcn_fsdp_parallelism=2", "ici_fsdp_parallelism=1"}).options.fsdp_parallelism, 2);
  for (const char* word : {"ici_context_parallelism=0", "dcn_data_parallelism=-2", "dcn_tensor_parallelism=5000"})
    EXPECT_THAT(refusal({word}), HasSubstr(word));
  EXPECT_THAT(refusal({"ici_context_parallelism=4096", "dcn_context_parallelism=2"}),
              AllOf(HasSubstr("dcn_context_parallelism"), HasSubstr("8192 is out of range")));
}

TEST(UpstreamOptions, OneDtypeIsComputedWith) {
  const auto dtype = [](const Words& words) { return Upstream(words).options.dtype; };
  EXPECT_EQ(dtype({"weights_dtype=float32", "activations_dtype=float32"}), DType::kF32);
  EXPECT_EQ(dtype({"weights_dtype=float32", "activations_dtype=bfloat16"}), DType::kBF16);
  EXPECT_EQ(dtype({"activations_dtype=bfloat16", "weights_dtype=float32"}), DType::kBF16);
  EXPECT_THAT(refusal({"weights_dtype=bfloat16", "activations_dtype=float32"}), HasSubstr("activations_dtype=float32"));
  EXPECT_THAT(refusal({"activations_dtype=bfloat16", "weights_dtype=int8"}),
              AllOf(HasSubstr("weights_dtype"), HasSubstr("bf16, float32")));
}

TEST(UpstreamOptions, FiguresOfAStepCacheBelongToItsSwitch) {
  const auto with = [](Words words) {
    words.insert(words.end(), {"magcache_thresh=0.04", "magcache_K=2"});
    return Upstream(words).options;
  };
  EXPECT_EQ(with({"use_magcache=False"}).cache_threshold, std::nullopt);
  const GenerateOptions on = with({"use_magcache=True"});
  EXPECT_EQ(on.cache, sampling::StepCacheKind::kMag);
  EXPECT_EQ(on.cache_threshold, 0.04);
  EXPECT_EQ(on.cache_max_skips, 2);
  EXPECT_EQ(with({}).cache_threshold, 0.04);  // beside cache=mag, as ever
  EXPECT_EQ(Upstream({"use_magcache=False", "magcache_thresh=0.04", "use_magcache=True"}).options.cache_threshold,
            0.04);
  EXPECT_EQ(Upstream({"use_cfg_cache=True"}).options.cache, sampling::StepCacheKind::kCfg);
  EXPECT_EQ(Upstream({"use_cfg_cache=True", "use_cfg_cache=False"}).options.cache, sampling::StepCacheKind::kNone);
  EXPECT_THAT(refusal({"use_magcache=True", "use_cfg_cache=True"}),
              AllOf(HasSubstr("use_cfg_cache=True"), HasSubstr("one at a time")));
  EXPECT_THAT(refusal({"use_magcache=perhaps"}), HasSubstr("use_magcache=perhaps"));
}

TEST(UpstreamOptions, ABatchIsPerDevice) {
  for (const char* word :
       {"per_device_batch_size=0", "per_device_batch_size=-1", "per_device_batch_size=many", "per_device_batch_size=65",
        "global_batch_size=8", "skip_first_n_steps_for_profiler=-5", "profiler_steps=banana"})
    EXPECT_THAT(refusal({word}), HasSubstr(word));
  const auto batch = [](const std::vector<std::string>& words, int ranks) {
    const GenerateOptions o = with_device_batch(Upstream(words).options, ranks);
    EXPECT_EQ(o.num_videos, o.batch_size);
    return o.batch_size;
  };
  EXPECT_EQ(batch({"per_device_batch_size=1.0"}, 1), 1);
  EXPECT_EQ(batch({"per_device_batch_size=0.125"}, 8), 1);
  EXPECT_EQ(batch({"per_device_batch_size=0.125"}, 2), 1);
  EXPECT_EQ(batch({"per_device_batch_size=0.5"}, 8), 4);
  EXPECT_EQ(batch({"per_device_batch_size=2"}, 2), 4);
  EXPECT_EQ(batch({"per_device_batch_size=0.166667"}, 6), 1);
  EXPECT_EQ(batch({"per_device_batch_size=0.333333"}, 6), 2);
  EXPECT_EQ(batch({"per_device_batch_size=1", "per_device_batch_size=default"}, 6), 1);
  EXPECT_EQ(batch({}, 8), 1);
  // A key of ours says more.
  EXPECT_EQ(with_device_batch(Upstream({"per_device_batch_size=0.5", "num_videos=3"}).options, 8).batch_size, 1);
  for (const auto& [word, ranks] :
       {std::pair("per_device_batch_size=0.3", 8), {"per_device_batch_size=1.5", 3}, {"per_device_batch_size=16", 8}}) {
    const GenerateOptions options = Upstream({word}).options;
    EXPECT_THAT(error_of([&, ranks = ranks] { with_device_batch(options, ranks); }),
                AllOf(HasSubstr(word), HasSubstr(fmt::format("on {} ranks", ranks))));
  }
}

TEST(UpstreamOptions, WhatIsNotBuiltIsRefusedUnlessItIsOff) {
  for (const char* word : {"quantization=", "use_qwix_quantization=False", "dropout=0.0", "guidance_rescale=0.0",
                           "enable_lora=False", "scheduler_dtype=float32", "lightning_repo=", "pose_video_path="})
    EXPECT_EQ(refusal({word}), "no error") << word;
  for (const char* word : {"quantization=int8", "use_qwix_quantization=True", "dropout=0.1", "guidance_rescale=0.7",
                           "enable_lora=True", "scheduler_dtype=bfloat16", "lightning_repo=x",
                           "wan_transformer_pretrained_model_name_or_path=x", "vae_weights_dtype=bfloat16"})
    EXPECT_THAT(refusal({word}), HasSubstr(word));
}

TEST(UpstreamOptions, AFileForAnimateNamesItsVideos) {
  const TestFolder folder;
  folder.write("animate.yml",
               "pretrained_model_name_or_path: 'Wan-AI/Wan2.2-Animate-14B-Diffusers'\nmode: 'replace'\n"
               "reference_image_path: a.png\npose_video_path: b.mp4\nface_video_path: c.mp4\n"
               "background_video_path: d.mp4\nmask_video_path: e.mp4\nsegment_frame_length: 81\n"
               "prev_segment_conditioning_frames: 5\nmotion_encode_batch_size: 8\nguidance_scale: 5.0\n"
               "animate_guidance_scale: 1.0\n");
  Upstream given;
  given.set.load_yaml(folder / "animate.yml");
  EXPECT_EQ(given.options.mode, AnimateMode::kReplace);
  EXPECT_EQ(given.options.image + given.options.pose_video + given.options.face_video, "a.pngb.mp4c.mp4");
  EXPECT_EQ(given.options.background_video + given.options.mask, "d.mp4e.mp4");
  EXPECT_EQ(given.options.segment_frame_length, 81);
  EXPECT_EQ(given.options.prev_segment_conditioning_frames, 5);
  EXPECT_EQ(given.options.guidance_scale, 1);
  Upstream text;
  folder.write("text.yml",
               "pretrained_model_name_or_path: 'Wan-AI/Wan2.1-T2V-14B-Diffusers'\nguidance_scale: 5.0\n"
               "animate_guidance_scale: 1.0\n");
  text.set.load_yaml(folder / "text.yml");
  EXPECT_EQ(text.options.guidance_scale, 5);
  // A folder of another name: what the pose video shows, which may come later.
  text.set.set_argument("pose_video=b.mp4");
  EXPECT_EQ(text.options.guidance_scale, 1);
  text.set.set_argument("guidance_scale=3");
  text.set.set_argument("pose_video=c.mp4");
  EXPECT_EQ(text.options.guidance_scale, 3);
}

// Figures of a file that has its cache off are those of a cache that is turned on later, by either name.
TEST(UpstreamOptions, FiguresOfACacheThatIsOffAreKept) {
  const TestFolder folder;
  folder.write("base.yml",
               "pretrained_model_name_or_path: x\nuse_magcache: False\nmagcache_thresh: 0.06\n"
               "magcache_K: 4\nretention_ratio: 0.1\nmag_ratios_base: [1.0, 0.99]\n");
  for (const char* on : {"cache=mag", "use_magcache=True"}) {
    Upstream given;
    given.set.load_yaml(folder / "base.yml");
    EXPECT_FALSE(given.options.cache_threshold) << on;
    given.set.set_argument("cache_max_skips=3");
    given.set.set_argument(on);
    const GenerateOptions& o = given.options;
    EXPECT_EQ(o.cache, sampling::StepCacheKind::kMag);
    EXPECT_EQ(o.cache_threshold, 0.06) << on;
    EXPECT_EQ(o.cache_max_skips, 3) << on;  // set by hand
    EXPECT_EQ(o.cache_retention, 0.1) << on;
    EXPECT_EQ(o.cache_ratios, "1.0,0.99") << on;
    given.set.set_argument("cache_threshold=0.3");
    EXPECT_EQ(o.cache_threshold, 0.3) << on;
    given.set.set_argument("magcache_thresh=0.4");
    EXPECT_EQ(o.cache_threshold, 0.4) << on;
  }
  Upstream other;
  other.set.load_yaml(folder / "base.yml");
  other.set.set_argument("cache=tea");
  EXPECT_FALSE(other.options.cache_threshold);
}

TEST(UpstreamOptions, AFileIsReadAsItIs) {
  const TestFolder folder;
  folder.write(
      "base.yml",
      "run_name: ''\nhf_access_token: secret\nhardware: 'tpu'\nmask_padding_tokens: True\n"
      "pretrained_model_name_or_path: 'Wan-AI/Wan2.2-T2V-A14B-Diffusers'\n"
      "logical_axis_rules: [['batch', ['data', 'fsdp']], ['norm', null]]\nulysses_shards: -1\nvae_spatial: -1\n"
      "flash_block_sizes: {\"block_q\" : 512, \"block_kv\" : 256, \"block_kv_compute\" : 128,\n"
      "  \"block_q_dkv\" : 64, \"use_fused_bwd_kernel\": False}\nguidance_scale_high: 4.0\n"
      "guidance_scale_low: 3.0\nuse_magcache: False\nmag_ratios_base: [1.0, 0.99]\nenable_profiler: True\n"
      "image_url: 'https://example.com/a.jpg'\n");
  Upstream given;
  given.set.load_yaml(folder / "base.yml");
  const GenerateOptions& o = given.options;
  EXPECT_EQ(o.model, "Wan-AI/Wan2.2-T2V-A14B-Diffusers");
  EXPECT_EQ(o.hardware, "");
  EXPECT_FALSE(o.mask_padding_tokens);
  EXPECT_EQ(o.strategy.ulysses_shards, std::nullopt);
  EXPECT_EQ(o.strategy.flash_block_sizes.block_q, 512);
  EXPECT_EQ(o.strategy.flash_block_sizes.block_kv, 256);
  EXPECT_EQ(o.strategy.flash_block_sizes.block_kv_compute, 0);
  EXPECT_EQ(o.vae_parallel, std::nullopt);
  EXPECT_EQ(o.guidance_scale, 4);
  EXPECT_EQ(o.guidance_scale_2, 3);
  EXPECT_EQ(o.cache_ratios, "");
  EXPECT_EQ(o.trace, "trace.json");
  EXPECT_EQ(o.image, "");
  EXPECT_THAT(given.set.ignored_keys(), ElementsAre("run_name", "hf_access_token", "hardware", "mask_padding_tokens",
                                                    "logical_axis_rules", "image_url"));
  EXPECT_THAT(given.set.values(), Not(HasSubstr("secret")));
  given.set.load_yaml(folder / "base.yml");  // again: each key is listed once
  EXPECT_EQ(given.set.ignored_keys().size(), 6u);
}

// Without the mark of the other program's files they are keys of this one.
TEST(UpstreamOptions, KeysOfThisProgramKeepTheirMeaning) {
  const TestFolder folder;
  folder.write("own.yml", "hardware: tpu\nmask_padding_tokens: true\nvae_parallel: 2\n");
  Upstream given;
  given.set.load_yaml(folder / "own.yml");
  EXPECT_EQ(given.options.hardware, "tpu");
  EXPECT_TRUE(given.options.mask_padding_tokens);
  EXPECT_TRUE(given.set.ignored_keys().empty());
  folder.write("mixed.yml", "pretrained_model_name_or_path: x\nhardware: h100_8\nvae_spatial: 4\n");
  given.set.load_yaml(folder / "mixed.yml");
  EXPECT_EQ(given.options.hardware, "h100_8");
  EXPECT_EQ(given.options.vae_parallel, 4);
  folder.write("bad.yml", "pretrained_model_name_or_pth: x\n");
  EXPECT_THAT(error_of([&] { given.set.load_yaml(folder / "bad.yml"); }),
              AllOf(HasSubstr("bad.yml line 1"), HasSubstr("did you mean 'pretrained_model_name_or_path'")));
  folder.write("bad.yml", "vae_spatial: 0\n");
  EXPECT_THAT(error_of([&] { given.set.load_yaml(folder / "bad.yml"); }),
              AllOf(HasSubstr("bad.yml line 1, as vae_spatial"), HasSubstr("0 is out of range")));
}

}  // namespace
}  // namespace zoetrope::pipeline
