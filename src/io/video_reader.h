// Pictures and clips in: what an image-to-video run starts from, what a controlled run follows, and what tests re-read.
// Any format of the FFmpeg libraries that lies in one local file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "zoetrope/tensor.h"

namespace zoetrope::io {

struct Clip {
  Tensor frames;   // [F, H, W, 3] U8, RGB; alpha is dropped, as the reference does
  double fps = 0;  // 0 where the file does not say
  std::map<std::string, std::string> metadata;
};

// The first `max_frames` frames. A file that is absent, of no known format, empty or broken is an Error naming it.
// Rotation tags are not followed.
Clip read_clip(const std::filesystem::path& path, int64_t max_frames = 10'000);

Tensor read_image(const std::filesystem::path& path);  // the first frame, [H, W, 3] U8

}  // namespace zoetrope::io
