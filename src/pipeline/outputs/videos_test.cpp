#include "pipeline/outputs/videos.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/test_folder.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

GenerateOptions options_of(const std::string& prompts, int64_t num_videos = 1) {
  GenerateOptions options;
  options.prompts = prompts;
  options.num_videos = num_videos;
  options.output = "clip.mp4";
  return options;
}

std::vector<std::string> prompts_of(const GenerateOptions& options) {
  std::vector<std::string> prompts;
  for (const GenerateOptions& video : videos_of(options)) prompts.push_back(video.prompt);
  return prompts;
}

std::string refusal(const GenerateOptions& options) {
  return error_of([&] { videos_of(options); });
}

TEST(Videos, OneVideoKeepsItsNames) {
  GenerateOptions options;
  options.prompt = "a red cat";
  options.seed = 7;
  options.output = "clip.mp4";
  const std::vector<GenerateOptions> videos = videos_of(options);
  ASSERT_EQ(videos.size(), 1u);
  EXPECT_EQ(videos[0].prompt, "a red cat");
  EXPECT_EQ(videos[0].seed, 7);
  EXPECT_EQ(videos[0].output, "clip.mp4");
  EXPECT_EQ(videos_of(options_of("a red cat\n"))[0].output, "clip.mp4");
}

TEST(Videos, EveryPromptHasEverySeedAndFilesOfItsOwn) {
  GenerateOptions options = options_of("a red cat\ntwo blue dogs\n", 2);
  options.seed = 5;
  options.dump = "tensors";
  options.trace = "out/t.json";
  options.grid = "all.mp4";
  std::vector<std::string> seen;
  for (const GenerateOptions& v : videos_of(options)) {
    EXPECT_TRUE(v.prompts.empty());
    EXPECT_TRUE(v.grid.empty());
    EXPECT_EQ(v.num_videos, 1);
    seen.push_back(fmt::format("{} {} {} {} {}", v.prompt, v.seed, v.output, v.dump, v.trace));
  }
  EXPECT_THAT(seen, ElementsAre("a red cat 5 clip_000.mp4 tensors_000 out/t_000.json",
                                "a red cat 6 clip_001.mp4 tensors_001 out/t_001.json",
                                "two blue dogs 5 clip_002.mp4 tensors_002 out/t_002.json",
                                "two blue dogs 6 clip_003.mp4 tensors_003 out/t_003.json"));
  options.seed = -1;
  for (const GenerateOptions& v : videos_of(options)) EXPECT_EQ(v.seed, -1);
}

TEST(Videos, NamesAreNumbered) {
  EXPECT_EQ(numbered("a/clip.mp4", 1, 2), "a/clip_001.mp4");
  EXPECT_EQ(numbered("frames/", 1, 2), "frames_001/");
  EXPECT_EQ(numbered("a/frames", 1, 2), "a/frames_001");
  EXPECT_EQ(numbered("a/x%04d.png", 1, 2), "a/x001-%04d.png");
  EXPECT_EQ(numbered("clip.mp4", 7, 10001), "clip_00007.mp4");
  EXPECT_EQ(numbered("", 1, 2), "");
  EXPECT_EQ(numbered("clip.mp4", 0, 1), "clip.mp4");
}

TEST(Videos, FilesOfPromptsHaveAnyLineEnds) {
  const TestFolder folder;
  const std::string file = (folder / "p.txt").string();
  folder.write("p.txt",
               "\xEF\xBB\xBF"
               "a cat, red\r\n  zwei Hündchen\r\n\r\n  \n");
  EXPECT_THAT(prompts_of(options_of(file)), ElementsAre("a cat, red", "  zwei Hündchen"));
  folder.write("p.txt", "a cat");
  EXPECT_THAT(prompts_of(options_of(file)), ElementsAre("a cat"));
}

TEST(Videos, RefusalsSayFileAndLine) {
  const TestFolder folder;
  const std::string file = (folder / "p.txt").string();
  for (const char* empty : {"", "\n \n"}) {
    folder.write("p.txt", empty);
    EXPECT_THAT(refusal(options_of(file)), AllOf(HasSubstr("prompts=" + file), HasSubstr("no prompt")));
  }
  folder.write("p.txt", "a cat\n \na dog\n");
  EXPECT_THAT(refusal(options_of(file)), AllOf(HasSubstr("prompts=" + file), HasSubstr("line 2 is blank")));
  EXPECT_THAT(refusal(options_of("[a red cat, a dog]")),
              AllOf(HasSubstr("prompts=[a red cat, a dog]"), HasSubstr("a list is for YAML files")));
  folder.write("p.txt", "a cat\nzwei H\xFCndchen\n");
  EXPECT_THAT(refusal(options_of(file)), AllOf(HasSubstr("line 2"), HasSubstr("UTF-8"), HasSubstr("0xFC")));
  EXPECT_THAT(refusal(options_of("no/such.txt")), HasSubstr("no/such.txt"));
}

TEST(Videos, RefusesWhatDoesNotGoTogether) {
  GenerateOptions both = options_of("a cat\n");
  both.prompt = "a dog";
  EXPECT_THAT(refusal(both), HasSubstr("prompts"));
  GenerateOptions noise = options_of("a cat\n", 2);
  noise.latents = "noise.safetensors";
  EXPECT_THAT(refusal(noise), AllOf(HasSubstr("latents=noise.safetensors"), HasSubstr("num_videos")));
  GenerateOptions last = options_of("a cat\n", 2);
  last.seed = INT64_MAX;
  EXPECT_THAT(refusal(last), HasSubstr("num_videos=2"));
  last.num_videos = 1;
  EXPECT_EQ(videos_of(last).front().seed, INT64_MAX);
  GenerateOptions compares = options_of("a cat\n", 2);
  compares.compare_one_rank = true;
  EXPECT_THAT(refusal(compares), HasSubstr("compare_one_rank"));
  GenerateOptions grid = options_of("a cat\n", 1);
  grid.grid = "all.mp4";
  EXPECT_THAT(refusal(grid), AllOf(HasSubstr("grid=all.mp4"), HasSubstr("num_videos")));
  GenerateOptions stream = options_of("a cat\n", 2);
  stream.output = "/dev/null";
  EXPECT_THAT(refusal(stream), AllOf(HasSubstr("output=/dev/null"), HasSubstr("device")));
}

TEST(Videos, RefusesNamesThatLeadToOneFile) {
  const TestFolder folder;
  std::filesystem::create_symlink("clip_000.mp4", folder / "clip_001.mp4");
  GenerateOptions options = options_of("a cat\n", 2);
  options.output = (folder / "clip.mp4").string();
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("clip_001.mp4"), HasSubstr("clip_000.mp4")));
}

TEST(Videos, RefusesTheNameOfAFrame) {
  const TestFolder folder;
  const auto named = [&](const char* name) { return (folder / name).string(); };
  GenerateOptions clip;
  clip.prompt = "a cat";
  clip.num_frames = 5;
  clip.output = named("p.png");
  const std::string frame = "p-0004.png is the same file as a frame of output=";
  for (std::string* name : {&clip.trace, &clip.dump, &clip.journal}) {
    *name = named("p-0004.png");
    EXPECT_THAT(refusal(clip), HasSubstr(frame));
    *name = named("p-0005.png");
    EXPECT_EQ(refusal(clip), "no error");
    name->clear();
  }
  GenerateOptions pictures = clip;
  pictures.output = pictures.dump = pictures.journal = named("frames/");
  pictures.trace = named("frames/t.json");
  EXPECT_EQ(refusal(pictures), "no error");
  pictures.trace = named("frames/0002.png");
  EXPECT_THAT(refusal(pictures), HasSubstr("frames/0002.png is the same file as a frame of output="));
  pictures.trace = named("frames/run.safetensors");
  EXPECT_THAT(refusal(pictures), HasSubstr("run.safetensors is the same file as trace="));
  GenerateOptions grid = clip;
  grid.num_videos = 2;
  grid.grid = named("all.png");
  grid.preview = 1;
  EXPECT_EQ(refusal(grid), "no error");
  grid.trace = named("all-0001.png");  // of the videos all-0001_000.png and all-0001_001.png
  EXPECT_EQ(refusal(grid), "no error");
  grid.trace.clear();
  grid.grid = named("p_000.png");
  EXPECT_THAT(refusal(grid), HasSubstr("the same file"));
}

}  // namespace
}  // namespace zoetrope::pipeline
