// Reads videos: of any format of the FFmpeg libraries that is one local file, an animated PNG too; as control clips
// also an animated WebP or a folder of pictures. Single pictures are in image.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "zoetrope/error.h"
#include "zoetrope/tensor.h"

#include "io/media/image.h"

namespace zoetrope::io {

struct Clip {
  Tensor frames;   // [F, H, W, 3] U8, RGB; alpha is dropped, as the reference does
  double fps = 0;  // 0 where the file does not say
  std::map<std::string, std::string> metadata;
};

// The first `max_frames` frames. A file that is missing, of unknown format, empty or broken is an Error naming it.
// Frames are rotated and mirrored by the file's display matrix, which is how phones store portraits; an angle that is
// not a multiple of 90° is an Error.
Clip read_clip(const std::filesystem::path& path, int64_t max_frames = 10'000);

// Whether a file is one picture: it has a picture's name and is no animation.
bool is_picture(const std::filesystem::path& path);

// The size to which a frame of this size is resized (Lanczos) as it is read; the same size: not at all.
using SizeRule = std::function<ImageSize(ImageSize own)>;

// The control clip of a run, which `what` names for errors ("video=", "mask="): a video file, an animated WebP, a
// picture, or a folder whose pictures (PNG, JPEG, WebP) are its frames in the order of their names, "frame2" before
// "frame10". Names that begin with a dot are skipped.
struct ControlClip {
  Tensor frames;             // [F, H, W, 3] U8, RGB
  int64_t available = 0;     // frames the file or folder has: F or more
  std::string damage;        // of a video file behind those, as in "it cannot be decoded: …"; empty: it has no more
  ImageSize own;             // their size before the rule
  double fps = 0;            // 0 where nothing says it: pictures
  bool hdr = false;          // values of PQ or HLG, as a video file stores them
  bool transparent = false;  // a frame has an alpha that is dropped
  bool clipped = false;      // of a picture, as in Picture
  std::string pixel_aspect;  // of a video file whose pixels are not square, width to height: "16:15"
  std::string jump;          // what of the numbers of a folder's pictures looks as if one were missing; empty: nothing
};

struct TooFewFrames : Error {
  TooFewFrames(const std::string& message, int64_t frames) : Error(message), available(frames) {}
  int64_t available;
};

// The first `frames` of it, upright. Fewer than that (TooFewFrames), or frames of several sizes, is an Error with both
// numbers.
ControlClip read_control_clip(const std::filesystem::path& path, int64_t frames, const std::string& what,
                              const SizeRule& size = {});

}  // namespace zoetrope::io
