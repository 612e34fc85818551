#include "pipeline/inputs/inputs.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/media/video.h"
#include "io/media/video_reader.h"
#include "io/weights/tensor_file.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string recorded_input(const std::string& model, const std::string& name) {
  return (recorded_model(model) / "inputs" / name).string();
}

GenerateOptions sized(int64_t height, int64_t width) {
  GenerateOptions options;
  options.height = height;
  options.width = width;
  options.num_frames = 5;
  return options;
}

// Frames f of one brightness each, 10·f.
void write_clip(const fs::path& output, int frames, int width, int height) {
  VideoFormat format;
  format.width = width;
  format.height = height;
  const auto writer = io::FrameWriter::open(output, format);
  for (int f = 0; f < frames; ++f) {
    const std::vector<uint8_t> pixels(static_cast<size_t>(3 * width * height), static_cast<uint8_t>(10 * f));
    writer->add_frame(pixels.data());
  }
  writer->finish();
}

class InputFiles : public testing::Test {
 protected:
  // As of a copy that broke off: a video whose index, in front, has 12 frames.
  std::string cut_clip(const std::string& name) const {
    write_clip(folder / name, 12, 48, 32);
    const std::string whole = file_bytes(folder / name);
    return folder.write(name, whole.substr(0, whole.size() - 50)).string();
  }
  std::string refusal(const GenerateOptions& options) const {
    return error_of([&] { read_inputs(options, vace); });
  }
  const ModelFolder vace = ModelFolder::open(recorded_model("wan21_vace"));
  const TestFolder folder;
};

TEST_F(InputFiles, PicturesComeAtTheVideosSizeAndAsTheyAre) {
  const ModelFolder i2v = ModelFolder::open(recorded_model("wan21_i2v"));
  GenerateOptions options = sized(32, 48);
  options.image = recorded_input("wan21_i2v", "image.png");
  const Inputs inputs = read_inputs(options, i2v);
  ASSERT_EQ(inputs.ends.size(), 1U);
  EXPECT_EQ(inputs.ends[0].shape(), (Shape{32, 48, 3}));
  const auto recorded = io::TensorFile::open(recorded_model("wan21_i2v") / "i2v.safetensors");
  EXPECT_EQ(inputs.pixels.shape(), recorded->info("clip_pixel_values").shape);
  EXPECT_EQ(inputs_bytes(options), 32 * 48 * 3);
  EXPECT_THAT(inputs.fingerprint(),
              AllOf(HasSubstr("pixels of image="), HasSubstr("pixels of image as its encoder sees it=")));
}

TEST_F(InputFiles, AModelWithoutAnImageEncoderNeedsNoPixelsForIt) {
  const ModelFolder i2v = ModelFolder::open(recorded_model("wan22_i2v"));
  GenerateOptions options = sized(32, 48);
  options.image = recorded_input("wan22_i2v", "image.png");
  EXPECT_FALSE(read_inputs(options, i2v).pixels);
}

TEST_F(InputFiles, AFolderOfFramesIsAControlVideo) {
  write_clip(folder / "frames", 5, 48, 32);
  write_clip(folder / "mask", 5, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  options.mask = (folder / "mask").string();
  options.reference_images = {recorded_input("wan21_vace", "reference_0.png")};
  const Inputs inputs = read_inputs(options, vace);
  EXPECT_EQ(inputs.control_video.shape(), (Shape{5, 32, 48, 3}));
  EXPECT_EQ(inputs.mask_frames(5).shape(), (Shape{5, 32, 48, 3}));
  EXPECT_EQ(*inputs.mask_frames(5).select(0, 3).data<uint8_t>(), 30);
  ASSERT_EQ(inputs.references.size(), 1U);
  EXPECT_EQ(inputs.references[0].shape(), (Shape{32, 48, 3}));
  EXPECT_TRUE(inputs.notes.empty());
  EXPECT_EQ(inputs_bytes(options), (10 + 4) * 32 * 48 * 3);
}

TEST_F(InputFiles, ThatDoNotFitIntoMemoryAreNotRead) {
  write_clip(folder / "frames", 5, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  options.memory_limit = 2e-5;  // GB; the frames are 23 KB
  EXPECT_THAT(refusal(options),
              HasSubstr("the pictures and videos of this run take 0.0 MB of memory, and memory_limit is 0.0 MB"));
  options.memory_limit = 3e-5;
  EXPECT_EQ(refusal(options), "no error");
}

TEST_F(InputFiles, OnePictureMasksAllFrames) {
  write_clip(folder / "frames", 5, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  options.mask = recorded_input("wan21_vace", "mask_00.png");
  const Inputs inputs = read_inputs(options, vace);
  const TensorView mask = inputs.mask_frames(5);
  EXPECT_EQ(mask.shape(), (Shape{5, 32, 48, 3}));
  EXPECT_EQ(mask.select(0, 4).raw(), mask.select(0, 0).raw());
  write_clip(folder / "mask.WebP", 1, 48, 32);
  options.mask = (folder / "mask.WebP").string();
  EXPECT_EQ(read_inputs(options, vace).mask.extent(0), 1);
  EXPECT_EQ(inputs_bytes(options), 6 * 32 * 48 * 3);
}

TEST_F(InputFiles, WhatIsNotUsedAndWhatIsReshapedIsSaid) {
  write_clip(folder / "frames", 7, 64, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  const Inputs inputs = read_inputs(options, vace);
  EXPECT_EQ(inputs.control_video.shape(), (Shape{5, 32, 48, 3}));
  ASSERT_EQ(inputs.notes.size(), 2U);
  EXPECT_THAT(inputs.notes[0], HasSubstr("7 frames, of which the first 5 are used"));
  EXPECT_THAT(inputs.notes[1], HasSubstr("64 x 32 and is resized to 48 x 32"));
}

// 832 x 480 is none of 16:9, but near it.
TEST_F(InputFiles, WhatIsStretchedIsSaid) {
  const ModelFolder i2v = ModelFolder::open(recorded_model("wan22_i2v"));
  GenerateOptions options = sized(480, 832);
  const auto notes_of = [&](int width, int height) {
    write_clip(folder / "image.png", 1, width, height);
    options.image = (folder / "image.png").string();
    return read_inputs(options, i2v).notes;
  };
  EXPECT_THAT(notes_of(160, 90), IsEmpty());
  EXPECT_THAT(notes_of(182, 100), IsEmpty());
  EXPECT_THAT(notes_of(183, 100), SizeIs(1));
  EXPECT_THAT(notes_of(90, 160),
              ElementsAre("image is 90 x 160, of another shape than the video (832 x 480), and is stretched; "
                          "max_area=399360 keeps its shape"));
  options.max_area = 480 * 832;
  options = with_size_of_inputs(options, i2v);
  EXPECT_THAT(read_inputs(options, i2v).notes, IsEmpty());
  options.last_image = recorded_input("wan22_i2v", "image.png");  // 50 x 40
  EXPECT_THAT(read_inputs(options, i2v).notes,
              ElementsAre(AllOf(HasSubstr("last_image is 50 x 40,"), HasSubstr("; crop it to that shape"))));
}

TEST_F(InputFiles, AStretchedMaskIsSaid) {
  write_clip(folder / "frames", 5, 32, 32);
  write_clip(folder / "mask", 5, 48, 32);
  GenerateOptions options = sized(32, 32);
  options.control_video = (folder / "frames").string();
  for (const char* mask : {"mask", "mask/0000.png"}) {
    options.mask = (folder / mask).string();
    EXPECT_THAT(read_inputs(options, vace).notes,
                ElementsAre("mask is 48 x 32, of another shape than control_video (32 x 32), and is stretched; crop it "
                            "to that shape"));
  }
}

TEST_F(InputFiles, StretchedVideosOfAnimateAreSaid) {
  const ModelFolder animate = ModelFolder::open(recorded_model("wan22_animate"));
  write_clip(folder / "frames", 5, 48, 32);
  GenerateOptions options = sized(32, 24);
  options.image = recorded_input("wan22_animate", "image.png");  // is fitted in on black
  options.mode = AnimateMode::kReplace;
  for (std::string* video : {&options.pose_video, &options.face_video, &options.background_video, &options.mask})
    *video = (folder / "frames").string();
  std::vector<std::string> stretched;
  for (const std::string& note : read_inputs(options, animate).notes)
    if (note.find("stretched") != std::string::npos) stretched.push_back(note);
  EXPECT_THAT(stretched,
              ElementsAre(HasSubstr("pose_video is 48 x 32, of another shape than the video (24 x 32), and is "
                                    "stretched; give width and height of the same shape"),
                          HasSubstr("background_video is 48 x 32,"), HasSubstr("mask is 48 x 32,")));
}

TEST_F(InputFiles, TooFewFramesAreRefused) {
  write_clip(folder / "frames", 7, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  options.num_frames = 9;
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("control_video="),
                                      HasSubstr("has 7 frames, but 9 are needed; num_frames=5 is the most that fits")));
  options.num_frames = 5;
  EXPECT_EQ(refusal(options), "no error");
  // A mask has as many frames as its video.
  write_clip(folder / "mask", 3, 48, 32);
  options.mask = (folder / "mask").string();
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("mask="), testing::EndsWith("has 3 frames, but 5 are needed")));
}

TEST_F(InputFiles, AMaskOfAnotherLengthIsRefused) {
  write_clip(folder / "frames", 5, 48, 32);
  write_clip(folder / "mask", 6, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "frames").string();
  options.mask = (folder / "mask").string();
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("mask="), HasSubstr("has 6 frames"), HasSubstr("has 5")));
}

TEST_F(InputFiles, ATinyReferenceIsRefused) {
  write_clip(folder / "tiny.png", 1, 7, 20);
  GenerateOptions options = sized(32, 48);
  options.reference_images = {(folder / "tiny.png").string()};
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("tiny.png is 7 x 20"), HasSubstr("at least 8 pixels")));
}

TEST_F(InputFiles, WhatIsNoPictureIsRefusedByName) {
  folder.write("cat.png", "this is text");
  GenerateOptions options = sized(32, 48);
  options.reference_images = {(folder / "cat.png").string()};
  EXPECT_THAT(refusal(options), HasSubstr("cat.png"));
}

TEST_F(InputFiles, DamageDoesNotShortenAnAnimation) {
  const ModelFolder animate = ModelFolder::open(recorded_model("wan22_animate"));
  const std::string cut = cut_clip("cut.mp4");
  const int64_t good = io::read_control_clip(cut, 1, "").available;
  ASSERT_TRUE(good > 2 && good < 12) << good;
  write_clip(folder / "whole.mp4", 12, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.image = recorded_input("wan22_animate", "image.png");
  const auto refusal_of = [&](const std::string& pose, const std::string& face, int64_t num_frames) {
    options.pose_video = pose;
    options.face_video = face;
    options.num_frames = num_frames;
    return error_of([&] { read_inputs(with_size_of_inputs(options, animate), animate); });
  };
  const std::string whole = (folder / "whole.mp4").string();
  const auto after = HasSubstr(fmt::format("cut.mp4: after {} frames it ", good));
  const auto instead = HasSubstr(fmt::format("set num_frames={} to use those", good));
  for (const int64_t num_frames : {Request().num_frames, good + 1}) {
    EXPECT_THAT(refusal_of(cut, whole, num_frames), AllOf(HasSubstr("pose_video="), after, instead)) << num_frames;
    EXPECT_THAT(refusal_of(whole, cut, num_frames), AllOf(HasSubstr("face_video="), after, instead)) << num_frames;
  }
  for (const int64_t num_frames : {good, good - 1}) {
    EXPECT_EQ(refusal_of(cut, cut, num_frames), "no error") << num_frames;
  }
  EXPECT_THAT(read_inputs(options, animate).notes,
              testing::Contains(fmt::format("pose_video has {} frames before it is damaged, the video {}: the rest is "
                                            "left out",
                                            good, good - 1)));
}

TEST_F(InputFiles, BehindDamageTwoLengthsMayDiffer) {
  write_clip(folder / "whole.mp4", 12, 48, 32);
  GenerateOptions options = sized(32, 48);
  options.control_video = (folder / "whole.mp4").string();
  options.mask = cut_clip("cut.mp4");
  EXPECT_EQ(refusal(options), "no error");
}

TEST_F(InputFiles, HdrIsSaid) {
  write_clip(folder / "x.webm", 5, 64, 32);
  GenerateOptions options = sized(32, 64);
  options.control_video = (folder / "x.webm").string();
  EXPECT_THAT(read_inputs(options, vace).notes, IsEmpty());
  std::string bytes = file_bytes(folder / "x.webm");
  const size_t transfer = bytes.find("\x55\xba\x81\x01");  // of one byte: BT.709
  ASSERT_NE(transfer, std::string::npos);
  bytes[transfer + 3] = 16;  // PQ
  folder.write("x.webm", bytes);
  EXPECT_THAT(read_inputs(options, vace).notes,
              ElementsAre("control_video is HDR and its values are taken as they are; convert it to SDR first"));
}

TEST_F(InputFiles, PixelsThatAreNotSquareAreSaid) {
  GenerateOptions options = sized(32, 64);
  options.control_video = (folder / "x.y4m").string();
  const auto notes = [&](const char* aspect) {
    std::string file = fmt::format("YUV4MPEG2 W64 H32 F16:1 Ip A{} C420mpeg2\n", aspect);
    for (int frame = 0; frame < 5; ++frame) file += "FRAME\n" + std::string(64 * 32 * 3 / 2, '\x80');
    folder.write("x.y4m", file);
    return read_inputs(options, vace).notes;
  };
  EXPECT_THAT(notes("1:1"), IsEmpty());
  EXPECT_THAT(
      notes("16:15"),
      ElementsAre("control_video has pixels of 16:15, which are taken as square; convert it to square pixels first"));
}

TEST_F(InputFiles, TheSizeFollowsTheShapeOfTheImage) {
  const ModelFolder i2v = ModelFolder::open(recorded_model("wan21_i2v"));
  GenerateOptions options;
  options.image = recorded_input("wan21_i2v", "image.png");  // 60 × 44
  EXPECT_EQ(with_size_of_inputs(options, i2v).width, 832);
  options.max_area = 60 * 44 * 16;
  const GenerateOptions sized_options = with_size_of_inputs(options, i2v);
  EXPECT_EQ(sized_options.height, 176);
  EXPECT_EQ(sized_options.width, 240);
  EXPECT_TRUE(sized_options.notes_of_inputs.empty());
  options.width = 96;
  EXPECT_THAT(with_size_of_inputs(options, i2v).notes_of_inputs,
              ElementsAre("max_area=42240 and the shape of image make 240x176, instead of width=96 height=480"));
}

}  // namespace
}  // namespace zoetrope::pipeline
