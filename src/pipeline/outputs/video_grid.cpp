#include "pipeline/outputs/video_grid.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

constexpr size_t kLine = 2;  // pixels between videos: 2 keeps sizes even
constexpr uint8_t kGrey = 128;

size_t size_of(int pixels) { return static_cast<size_t>(pixels); }

}  // namespace

VideoGrid::VideoGrid(std::string file, size_t count, const VideoFormat& expected)
    : file_(std::move(file)),
      columns_(static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(count))))),
      rows_((count + columns_ - 1) / columns_),
      format_(expected),
      videos_(count) {
  video_file(file_)(whole());
}

VideoFormat VideoGrid::whole() const {
  VideoFormat all = format_;
  all.width = static_cast<int>(columns_ * (size_of(format_.width) + kLine) - kLine);
  all.height = static_cast<int>(rows_ * (size_of(format_.height) + kLine) - kLine);
  // What makes a video is in its own file. The version marks frames of .png, which a shorter grid then replaces.
  std::erase_if(all.metadata, [](const auto& tag) { return tag.first != "version"; });
  all.codec.clear();
  all.crf.reset();
  return all;
}

void VideoGrid::begin_video(size_t video, const VideoFormat& format) {
  if (video == 0) format_ = format;
  if (format.width != format_.width || format.height != format_.height) {
    fail("grid={}: video {} is {} x {}, and the first {} x {}; all must have one size", file_, video, format.width,
         format.height, format_.width, format_.height);
  }
}

void VideoGrid::add_frame(size_t video, const uint8_t* rgb) {
  videos_[video].emplace_back(rgb, rgb + size_of(format_.width) * size_of(format_.height) * 3);
}

int64_t VideoGrid::bytes(size_t count, int64_t frames, const VideoFormat& video) {
  return static_cast<int64_t>(count) * frames * video.width * video.height * 3;
}

void VideoGrid::write() {
  size_t frames = std::numeric_limits<size_t>::max();
  for (const auto& video : videos_) frames = std::min(frames, video.size());
  const VideoFormat all = whole();
  const std::unique_ptr<FrameSink> sink = video_file(file_)(all);
  const size_t row = size_of(format_.width) * 3, whole_row = size_of(all.width) * 3;
  std::vector<uint8_t> frame(whole_row * size_of(all.height), kGrey);
  for (size_t f = 0; f < frames; ++f) {
    for (size_t v = 0; v < videos_.size(); ++v) {
      const size_t top = v / columns_ * (size_of(format_.height) + kLine);
      const size_t left = v % columns_ * (row + kLine * 3);
      for (size_t y = 0; y < size_of(format_.height); ++y) {
        std::memcpy(frame.data() + (top + y) * whole_row + left, videos_[v][f].data() + y * row, row);
      }
      std::vector<uint8_t>().swap(videos_[v][f]);  // the sink of a .gif keeps the whole
    }
    sink->add_frame(frame.data());
  }
  sink->finish();
}

}  // namespace zoetrope::pipeline
