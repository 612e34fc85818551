// Where the frames of a clip go: a file, a folder, or an object of your own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "zoetrope/api.h"

namespace zoetrope {

struct VideoFormat {
  int width = 0;   // pixels
  int height = 0;  // pixels
  double fps = 16;
  // What the clip was made from (prompt, seed, model, version, …). An .mp4, .mov or .webm carries it as container tags,
  // which ffprobe shows under the same keys; a .png as tEXt blocks; .gif and .webp have no place for it and drop it.
  std::map<std::string, std::string> metadata;
  // Of .mp4 and .mov: "h264" (unless set) or "h265"; of .webm "vp9".
  std::string codec{};
  // Constant quality as the encoder counts it, 0 the best: of h264 and h265 to 51, of vp9 to 63. Unset: visually
  // lossless (17, 20, 20).
  std::optional<int> crf{};
  // How many will come. 0: not known; then .png frames of an older, longer clip stay.
  int64_t frames = 0;
};

// How a value of [0, 1] becomes a byte. The reference's video writer truncates 255·x, its image writer rounds it (half
// to even).
enum class PixelRounding : uint8_t { kTruncate, kRound };

// add_frame() × n → finish(). One call at a time; add_frame() is called on a thread of the run, finish() on the thread
// of rank 0. An exception from either ends the run and comes out of Model::generate(). A sink that is destroyed without
// finish() was abandoned.
class ZOETROPE_API FrameSink {
 public:
  virtual ~FrameSink();
  // The same frame before its values are rounded to bytes, right before add_frame() and like it: [height, width, 3] in
  // [0, 1]. Unless overridden, nothing.
  virtual void add_values(const float* rgb);
  virtual void add_frame(const uint8_t* rgb) = 0;  // [height, width, 3]; valid during the call
  virtual void finish() = 0;                       // after the last frame
  virtual PixelRounding rounding() const;          // unless overridden, truncating
};

// Called once per run on rank 0, before anything long begins; what it throws ends the run.
using OpenSink = std::function<std::unique_ptr<FrameSink>(const VideoFormat& format)>;

// A file or folder, by the name of `output`:
//   x.mp4, x.mov  H.264 or H.265 4:2:0 (BT.709). An odd width or height gets one more column or row, a copy of the
//                 last, as 4:2:0 has even sizes only.
//   x.webm        VP9, likewise
//   x.webp        animation, endless loop
//   x.gif         256 colours chosen for the whole clip, ordered dither, endless loop; at most 50 frames a second.
//                 All frames are kept in memory until finish().
//   x%04d.png     one file per frame, counted from 0; the pattern is in the last part of the path
//   x.png         one frame: this file; several: x-0000.png, x-0001.png, …
//   x or x/       a folder (made if absent, its parent must exist) of 0000.png, 0001.png, …
// Numbered frames replace files of their names, and the frames behind their last one are removed that have the tags of
// the old first one: the rest of an older, longer clip. Other files stay.
// The final name appears in finish() only; a sink that is abandoned removes everything it made. Opening throws Error
// for everything that can be known to go wrong: an unknown extension, a folder that is absent or not writable, an
// impossible size. A disk that fills up is an Error from the later calls.
ZOETROPE_API OpenSink video_file(std::filesystem::path output);

}  // namespace zoetrope
