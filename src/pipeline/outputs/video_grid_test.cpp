#include "pipeline/outputs/video_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_folder.h"
#include "io/media/image.h"

namespace zoetrope::pipeline {
namespace {

constexpr int kWidth = 4, kHeight = 2;

std::vector<uint8_t> plain(uint8_t value) { return std::vector<uint8_t>(kWidth * kHeight * 3, value); }

// The first channel at (x, y).
int at(const Tensor& image, int64_t x, int64_t y) { return image.data<uint8_t>()[(y * image.extent(1) + x) * 3]; }

TEST(VideoGrid, PlacesVideosRowByRow) {
  const TestFolder folder;
  VideoGrid grid((folder / "all.png").string(), 3, {kWidth, kHeight, 8, {}});
  EXPECT_EQ(grid.columns(), 2u);
  EXPECT_EQ(grid.rows(), 2u);
  for (size_t video = 0; video < 3; ++video) grid.add_frame(video, plain(static_cast<uint8_t>(10 * video)).data());
  grid.add_frame(0, plain(200).data());  // a frame that the others lack
  grid.write();
  const Tensor image = io::read_image(folder / "all.png");
  ASSERT_EQ(image.shape(), (Shape{2 * kHeight + 2, 2 * kWidth + 2, 3}));
  EXPECT_EQ(at(image, 0, 0), 0);
  EXPECT_EQ(at(image, kWidth - 1, kHeight - 1), 0);
  EXPECT_EQ(at(image, kWidth + 2, 0), 10);
  EXPECT_EQ(at(image, 0, kHeight + 2), 20);
  EXPECT_EQ(at(image, kWidth, 0), 128) << "the line between two";
  EXPECT_EQ(at(image, 2 * kWidth + 1, 2 * kHeight + 1), 128) << "the place that no video has";
}

TEST(VideoGrid, TakesTheSizeOfTheFirstVideo) {
  const TestFolder folder;
  VideoGrid grid((folder / "all.png").string(), 2, {16, 16, 8, {}});
  grid.begin_video(0, {kWidth, kHeight, 8, {}});
  grid.begin_video(1, {kWidth, kHeight, 8, {}});
  EXPECT_THROW(grid.begin_video(1, {kHeight, kWidth, 8, {}}), Error);
  for (size_t video = 0; video < 2; ++video) grid.add_frame(video, plain(1).data());
  grid.write();
  EXPECT_EQ(io::read_image(folder / "all.png").shape(), (Shape{kHeight, 2 * kWidth + 2, 3}));
}

TEST(VideoGrid, WhatCannotBeWrittenIsSaidAtOnce) {
  const TestFolder folder;
  const auto refusal = [&](const std::string& name, int width) -> std::string {
    try {
      VideoGrid((folder / name).string(), 4, {width, 16, 8, {}});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("none/all.mp4", 16), testing::HasSubstr("none/all.mp4"));
  EXPECT_THAT(refusal("all.avi", 16), testing::HasSubstr("unknown extension"));
  EXPECT_THAT(refusal("all.mp4", 8192), testing::HasSubstr("16386 x 34")) << "more than a video may have";
}

}  // namespace
}  // namespace zoetrope::pipeline
