// The videos of one run beside each other in one more file, to be compared at a glance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "zoetrope/video.h"

namespace zoetrope::pipeline {

// `count` videos in rows of equal length, as near to a square as they go, with a narrow line between them. The file is
// coded by default, whatever the videos' own are. Frames are kept in memory until write().
class VideoGrid {
 public:
  // Opens the file and abandons it: throws Error for what cannot be written. `expected` is the format of one video.
  VideoGrid(std::string file, size_t count, const VideoFormat& expected);

  // Throws Error where it is of another size than the first.
  void begin_video(size_t video, const VideoFormat& format);
  void add_frame(size_t video, const uint8_t* rgb);  // [height, width, 3]
  // The file, of the frames that all videos have. Once: it releases them.
  void write();

  const std::string& file() const { return file_; }
  // That are kept of `count` videos with this many frames each.
  static int64_t bytes(size_t count, int64_t frames, const VideoFormat& video);
  size_t columns() const { return columns_; }
  size_t rows() const { return rows_; }

 private:
  VideoFormat whole() const;

  const std::string file_;
  const size_t columns_, rows_;
  VideoFormat format_;                                     // of one video
  std::vector<std::vector<std::vector<uint8_t>>> videos_;  // frames of each
};

}  // namespace zoetrope::pipeline
