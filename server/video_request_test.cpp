#include "server/video_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/test_folder.h"
#include "server/api_error.h"
#include "server/base64.h"

namespace zoetrope::server {
namespace {

using pipeline::GenerateOptions;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

VideoRequest from_json(std::string_view body) { return parse_video_request(fields_of_json(body)); }

GenerateOptions options_from(std::string_view body, GenerateOptions options = {}) {
  apply(from_json(body), {}, options);
  return options;
}

// The refusal as "STATUS CODE PARAM: message".
template <typename Body>
std::string refusal_of(Body&& body) {
  try {
    body();
  } catch (const ApiError& error) {
    return fmt::format("{} {} {}: {}", error.status(), error.code(), error.param(), error.what());
  }
  return "no error";
}

TEST(VideoRequest, EveryKeyOfGenerateHasOneUse) {
  GenerateOptions options;
  std::set<std::string> known;
  for (const auto& [key, value] : pipeline::describe_options(options).settings()) known.insert(key);
  for (const std::string& key : request_keys()) EXPECT_TRUE(known.contains(key)) << key;
  for (const std::string& key : upload_keys()) EXPECT_TRUE(known.contains(key)) << key;
  // What is neither is fixed when the server starts: a new key of a video has to be named in request_keys().
  std::set<std::string> fixed;
  for (const std::string& key : known)
    if (use_of_key(key) == KeyUse::kModel) fixed.insert(key);
  EXPECT_EQ(use_of_key("weights"), KeyUse::kModel);
  EXPECT_EQ(use_of_key("ranks"), KeyUse::kModel);
  EXPECT_EQ(use_of_key("output"), KeyUse::kNone);
  EXPECT_EQ(fixed.size() + request_keys().size() + upload_keys().size() + 12, known.size());
  for (const char* key : {"prompt", "fps", "vae_tiling", "cache", "image", "trace"}) EXPECT_FALSE(fixed.contains(key));
}

TEST(VideoRequest, FieldsBecomeOptions) {
  const GenerateOptions o = options_from(
      R"({"prompt": "a cat", "size": "64x32", "seconds": "1", "fps": 8, "guidance_scale": 3.5, "seed": -1,
          "sigmas": [1, 0.5], "vae_tiling": true, "negative_prompt": null, "scheduler": "unipc"})");
  EXPECT_EQ(o.prompt, "a cat");
  EXPECT_EQ(o.width, 64);
  EXPECT_EQ(o.height, 32);
  EXPECT_EQ(o.num_frames, 9);
  EXPECT_EQ(o.guidance_scale, 3.5);
  EXPECT_EQ(o.seed, -1);
  EXPECT_THAT(o.sigmas, ElementsAre(1, 0.5));
  EXPECT_TRUE(o.vae_tiling);
}

TEST(VideoRequest, ARecipeIsChangedByTheOtherFields) {
  const GenerateOptions recipe = options_from(R"({"recipe": "lightning_4"})", {});
  EXPECT_EQ(recipe.guidance_scale, 1);
  EXPECT_THAT(recipe.sigmas, ElementsAre(1, 0.75, 0.5, 0.25));
  // Also those that come before it, by name or in the body.
  const GenerateOptions changed = options_from(R"({"guidance_scale": 2, "recipe": "lightning_4"})", {});
  EXPECT_EQ(changed.guidance_scale, 2);
  EXPECT_EQ(changed.sigmas, recipe.sigmas);
  EXPECT_THAT(refusal_of([] { options_from(R"({"recipe": "lightning"})", {}); }),
              AllOf(HasSubstr("400 invalid_value recipe"), HasSubstr("lightning_4")));
}

TEST(VideoRequest, SecondsAreRoundedToFramesThatAModelMakes) {
  GenerateOptions base;
  base.fps = 24;
  EXPECT_EQ(options_from(R"({"seconds": "5"})", base).num_frames, 121);
  base.fps = 15;
  EXPECT_EQ(options_from(R"({"seconds": 1})", base).num_frames, 17);
  EXPECT_THAT(refusal_of([&] { options_from(R"({"seconds": 5, "num_frames": 5})", base); }),
              HasSubstr("400 invalid_value seconds: seconds=5: is 77 frames at fps=15, not num_frames=5"));
}

// As the page shows them: in thousandths of a second, and of one frame not 0.
TEST(VideoRequest, SecondsOfAVideoMakeItsFramesAgain) {
  GenerateOptions base;
  for (const int64_t fps : {1, 2, 3, 7, 15, 16, 24, 25, 30, 101, 239, 240}) {
    base.fps = fps;
    for (const int64_t frames : {1, 5, 9, 81, 121, 4093}) {
      const double seconds = static_cast<double>(std::max<int64_t>(frames - 1, 1)) / static_cast<double>(fps);
      EXPECT_EQ(options_from(fmt::format(R"({{"seconds": "{:.3f}"}})", seconds), base).num_frames, frames) << fps;
    }
  }
  EXPECT_THAT(refusal_of([] { options_from(R"({"seconds": 0})"); }), HasSubstr("400 invalid_value seconds"));
}

TEST(VideoRequest, TheAreaOfTheServerIsForPicturesWithoutASize) {
  GenerateOptions base;
  base.max_area = 4096;
  const std::string picture = R"("image": "data:image/png;base64,iVBORw==")";
  EXPECT_EQ(options_from("{" + picture + "}", base).max_area, 4096);
  EXPECT_EQ(options_from("{" + picture + R"(, "max_area": "default"})", base).max_area, 4096);
  for (const char* size : {R"("size": "96x64")", R"("height": 64)", R"("width": 96, "max_area": "default")"})
    EXPECT_EQ(options_from(fmt::format("{{{}, {}}}", picture, size), base).max_area, std::nullopt) << size;
  EXPECT_EQ(options_from(R"({"size": "96x64"})", base).max_area, std::nullopt);
  EXPECT_EQ(options_from(R"({"max_area": "default"})", base).max_area, std::nullopt);
  EXPECT_EQ(options_from(R"({"size": "96x64", "max_area": 2560})", base).max_area, 2560) << "what the request says";
}

// As OpenAI's client writes them.
TEST(VideoRequest, ListsOfAFormAreRepeatedFields) {
  const VideoRequest request = parse_video_request(fields_of_form({{"prompt", "a cat"},
                                                                   {"sigmas[]", "1"},
                                                                   {"lora[]", "style:0.5"},
                                                                   {"sigmas[]", "0.5"},
                                                                   {"lora[]", "other"},
                                                                   {"timesteps[]", "1000"},
                                                                   {"reference_images[]", "a", true},
                                                                   {"reference_images[]", "b", true}}));
  EXPECT_EQ(request.settings.at("sigmas"), "1,0.5");
  EXPECT_EQ(request.settings.at("lora"), "style:0.5,other");
  EXPECT_EQ(request.settings.at("timesteps"), "1000");
  ASSERT_EQ(request.uploads.size(), 2u);
  EXPECT_EQ(request.uploads[1].key + request.uploads[1].bytes, "reference_imagesb");
  const auto refusal = [](const std::vector<Field>& parts) {
    return refusal_of([&] { parse_video_request(fields_of_form(parts)); });
  };
  EXPECT_EQ(refusal({{"seed[]", "1"}}),
            "400 unknown_parameter seed[]: there is no field 'seed[]'; did you mean 'seed'?");
  EXPECT_THAT(refusal({{"[]", "1"}}), HasSubstr("there is no field '[]'"));
  EXPECT_THAT(refusal({{"sigmas", "1"}, {"sigmas[]", "0.5"}}), HasSubstr("sigmas: is given twice"));
  EXPECT_THAT(refusal({{"sigmas[]", "1", true}}), HasSubstr("sigmas: must be text"));
  EXPECT_EQ(refusal({{"lora[][name]", "style"}}),
            "400 unknown_parameter lora[][name]: there is no field 'lora[][name]'; in a form write lora as NAME:SCALE");
}

TEST(VideoRequest, UnknownFieldsAreRefusedByName) {
  EXPECT_EQ(refusal_of([] { from_json(R"({"num_frame": 5})"); }),
            "400 unknown_parameter num_frame: there is no field 'num_frame'; did you mean 'num_frames'?");
  EXPECT_EQ(refusal_of([] { from_json(R"({"ranks": 4})"); }),
            "400 unknown_parameter ranks: ranks: is fixed when the server starts; leave it out");
  EXPECT_EQ(refusal_of([] { from_json(R"({"output": "x.mp4"})"); }),
            "400 unknown_parameter output: output: is not for a request, which makes one video; leave it out");
  EXPECT_THAT(refusal_of([] { from_json(R"({"size": "1x2", "width": 1})"); }), HasSubstr("leave out width"));
  EXPECT_THAT(refusal_of([] { parse_video_request({{"seed", "1"}, {"seed", "2"}}); }), HasSubstr("given twice"));
}

TEST(VideoRequest, DefaultIsAPromptAndNoWordOfKeys) {
  GenerateOptions base;
  base.prompt = "another";
  EXPECT_EQ(options_from(R"({"prompt": "default"})", base).prompt, "default");
  base.seed = 5;
  EXPECT_EQ(options_from(R"({"seed": "default"})", base).seed, 5);
}

TEST(VideoRequest, FilesAreUploadsOnly) {
  EXPECT_THAT(refusal_of([] {
                parse_video_request({{"image", "/etc/passwd"}});
              }),
              HasSubstr("must be an uploaded file"));
  EXPECT_THAT(refusal_of([] { from_json(R"({"image": "/etc/passwd"})"); }), HasSubstr("data:image/png;base64"));
  const VideoRequest request = from_json(R"({"input_reference": {"image_url": "data:image/png;base64,iVBORw=="}})");
  ASSERT_EQ(request.uploads.size(), 1u);
  EXPECT_EQ(request.uploads[0].key, "image");
  EXPECT_EQ(request.uploads[0].bytes, "\x89PNG");
  EXPECT_EQ(upload_ending(request.uploads[0]), ".png");
  EXPECT_EQ(upload_ending({"mask", std::string("\0\0\0\x18"
                                               "ftypisom",
                                               12)}),
            ".mp4");
  EXPECT_THAT(refusal_of([] { upload_ending({"image", "GIF89a"}); }), HasSubstr("PNG, JPEG or WebP"));
  EXPECT_THAT(refusal_of([] { upload_ending({"control_video", "#EXTM3U\nfile:///x"}); }), HasSubstr("MP4"));
  EXPECT_THAT(refusal_of([] { options_from(R"({"cache_ratios": "/etc/passwd"})"); }), HasSubstr("list of numbers"));
}

TEST(VideoRequest, LorasAreNamesInOneFolder) {
  const TestFolder folder;
  folder.write("style.safetensors", "x");
  folder.write("other.txt", "x");
  GenerateOptions options;
  apply(from_json(R"({"lora": [{"name": "style", "scale": 0.5}, {"lora_name": "style.safetensors"}]})"), folder.path(),
        options);
  ASSERT_EQ(options.lora.size(), 2u);
  EXPECT_EQ(options.lora[0], (LoraFile{folder / "style.safetensors", 0.5}));
  for (const char* name : {"other", "../style", "other.txt", ".", "/style"}) {
    EXPECT_THAT(refusal_of([&] {
                  GenerateOptions unused;
                  apply_settings({{"lora", name}}, folder.path(), unused);
                }),
                HasSubstr("there are: style"))
        << name;
  }
}

TEST(VideoRequest, WhatIsKeptMakesTheSameOptions) {
  const VideoRequest request = from_json(R"({"prompt": "a 'cat'", "size": "64x32", "seed": 3, "cache": "cfg"})");
  GenerateOptions base;
  base.num_inference_steps = 7;
  base.ranks = 4;
  apply(request, {}, base);
  const auto kept = settings_to_keep(request, base);
  EXPECT_THAT(kept,
              testing::UnorderedElementsAre(Pair("prompt", "a 'cat'"), Pair("width", "64"), Pair("height", "32"),
                                            Pair("seed", "3"), Pair("cache", "cfg"), Pair("num_inference_steps", "7")));
  GenerateOptions again;
  apply_settings(kept, {}, again);
  again.ranks = 4;
  EXPECT_EQ(pipeline::changed_settings(again), pipeline::changed_settings(base));
}

TEST(Base64, TakesWhatIsBase64) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("YQ=="), "a");
  EXPECT_EQ(decode_base64("YWI="), "ab");
  EXPECT_EQ(decode_base64("YWJj"), "abc");
  for (const char* text : {"Y", "YQ", "YQ=", "Y=Q=", "YQ==YQ==", "Y Q=", "YQ==\n", "====", "YWJ\xff"})
    EXPECT_FALSE(decode_base64(text)) << text;
}

}  // namespace
}  // namespace zoetrope::server
