#include "pipeline/inputs/given_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kNone = "no error";  // of error_of()

std::string refusal(const char* model, const GenerateOptions& options) {
  const ModelFolder folder = ModelFolder::open(recorded_model(model));
  return error_of([&] { check_inputs(options, folder); });
}

TEST(GivenInputs, InputsOfOtherModelsAreRefusedWithThoseTaken) {
  GenerateOptions options;
  options.image = "cat.png";
  EXPECT_EQ(refusal("wan21_t2v", options), "image: this model (text to video) takes a prompt alone; leave it out");
  EXPECT_EQ(refusal("wan21_i2v", options), kNone);
  EXPECT_EQ(refusal("wan22_ti2v", options), kNone);
  EXPECT_THAT(refusal("wan21_vace", options),
              HasSubstr("takes a prompt and, where wanted, control_video, mask, reference_images, conditioning_scale"));
  EXPECT_THAT(refusal("wan21_flf2v", options), HasSubstr("last_image: this model (first and last frame"));
  options.last_image = "dog.png";
  EXPECT_EQ(refusal("wan21_flf2v", options), kNone);
  EXPECT_EQ(refusal("wan22_i2v", options), kNone);
  EXPECT_EQ(refusal("wan21_i2v", options),
            "last_image: this model (image to video) takes a prompt and image; leave it out");
  EXPECT_THAT(refusal("wan22_ti2v", options), HasSubstr("takes a prompt and, where wanted, image; leave"));
  options.num_frames = 1;
  EXPECT_THAT(refusal("wan22_i2v", options), HasSubstr("num_frames=1"));
  EXPECT_EQ(refusal("wan21_i2v", {}),
            "image: this model (image to video) needs the picture that the video begins with, as image=FILE");
}

TEST(GivenInputs, SegmentsAreAnimates) {
  GenerateOptions options;
  options.segment_frame_length = 41;
  EXPECT_EQ(refusal("wan21_t2v", options),
            "segment_frame_length: this model (text to video) takes a prompt alone; leave it out");
  options = {};
  options.prev_segment_conditioning_frames = 5;
  EXPECT_THAT(refusal("wan21_t2v", options), HasSubstr("prev_segment_conditioning_frames: this model"));
}

TEST(GivenInputs, InputsThatContradictEachOtherAreRefused) {
  EXPECT_EQ(refusal("wan21_vace", {}), kNone) << "a prompt is enough";
  GenerateOptions options;
  options.mask = "mask.mp4";
  EXPECT_THAT(refusal("wan21_vace", options), HasSubstr("mask: masks the frames of control_video"));
  options = {};
  options.max_area = 1000;
  // Also where height and width are given, which max_area replaces.
  EXPECT_EQ(refusal("wan21_vace", options), "max_area: follows the shape of image; name one, or leave max_area out");
  options = {};
  options.reference_images = {"a.png", "", "b.png"};
  EXPECT_THAT(refusal("wan21_vace", options), HasSubstr("a name is missing"));
  options = {};
  options.conditioning_scale = {1, 2, 3};
  EXPECT_THAT(refusal("wan21_vace", options), AllOf(HasSubstr("3 numbers"), HasSubstr("2 control layers")));
}

TEST(GivenInputs, AnimateNeedsItsVideos) {
  GenerateOptions options;
  options.image = "cat.png";
  options.pose_video = "pose.mp4";
  EXPECT_THAT(refusal("wan22_animate", options), HasSubstr("face_video: this model (character animation) needs"));
  options.face_video = "face.mp4";
  EXPECT_EQ(refusal("wan22_animate", options), kNone);
  options.background_video = "room.mp4";
  EXPECT_THAT(refusal("wan22_animate", options), HasSubstr("background_video: mode=animate has no background"));
  options.mode = AnimateMode::kReplace;
  EXPECT_THAT(refusal("wan22_animate", options), HasSubstr("mask: this model (character animation) needs"));
  options.mask = "mask.mp4";
  EXPECT_EQ(refusal("wan22_animate", options), kNone);
  EXPECT_THAT(refusal("wan21_t2v", options), HasSubstr("leave it out"));
}

TEST(GivenInputs, ListsAreReadInOrder) {
  GenerateOptions options;
  EXPECT_TRUE(reference_paths(options).empty());
  options.reference_images = {"a.png", "b c.jpg"};
  EXPECT_EQ(reference_paths(options), (std::vector<std::filesystem::path>{"a.png", "b c.jpg"}));
  EXPECT_EQ(conditioning_scales(options, 3), (std::vector<float>{1, 1, 1}));
  options.conditioning_scale = {0.5};
  EXPECT_EQ(conditioning_scales(options, 2), (std::vector<float>{0.5, 0.5}));
  options.conditioning_scale = {0.5, -2};
  EXPECT_EQ(conditioning_scales(options, 2), (std::vector<float>{0.5, -2}));
}

}  // namespace
}  // namespace zoetrope::pipeline
