// Clips in: what a controlled run follows, and what tests re-read. Any format of the FFmpeg libraries that lies in one
// local file, or a folder of pictures. Single pictures are image.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "zoetrope/tensor.h"

#include "io/image.h"

namespace zoetrope::io {

struct Clip {
  Tensor frames;   // [F, H, W, 3] U8, RGB; alpha is dropped, as the reference does
  double fps = 0;  // 0 where the file does not say
  std::map<std::string, std::string> metadata;
};

// The first `max_frames` frames. A file that is absent, of no known format, empty or broken is an Error naming it.
// Frames are turned and mirrored as the file's display matrix says, which is how phones store portraits; one that turns
// by anything but quarters is an Error with its angle.
Clip read_clip(const std::filesystem::path& path, int64_t max_frames = 10'000);

// What a frame of this size is resized to (Lanczos) as soon as it is read; its own size: not at all.
using SizeRule = std::function<ImageSize(ImageSize own)>;

// The control clip of a run, which `what` names for errors ("video=", "mask="): a video file, or a folder whose
// pictures (PNG, JPEG) are its frames in the order of their names, "frame2" before "frame10".
struct ControlClip {
  Tensor frames;          // [F, H, W, 3] U8, RGB
  int64_t available = 0;  // frames the file or folder has: F or more
  ImageSize own;          // their size before the rule
};

// The first `frames` of it, upright. Fewer than that, or frames of several sizes, is an Error with both numbers.
ControlClip read_control_clip(const std::filesystem::path& path, int64_t frames, const std::string& what,
                              const SizeRule& size = {});

}  // namespace zoetrope::io
