// Writes a video to an .mp4, a .gif or numbered .png files. Knows pixels and files, not models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace zoetrope::io {

struct VideoFormat {
  int width = 0;
  int height = 0;
  double fps = 16;
  // What the clip was made from (prompt, seed, model, version, …). An .mp4 carries it as container tags, which ffprobe
  // shows under the same keys; a .png as tEXt blocks; a .gif has no place for it and drops it.
  std::map<std::string, std::string> metadata;
};

// From a value in [0, 1] (others are clamped, NaN is 0) to a byte. There are two because the reference has two: its
// video writer truncates 255·x, its image writer rounds it (half to even).
uint8_t to_u8_truncate(float value);
uint8_t to_u8_round(float value);

enum class PixelRounding { kTruncate, kRound };

// The same for many values: bytes [values.size()].
void to_u8(PixelRounding rounding, std::span<const float> values, uint8_t* bytes);

// open() → add_frame() × n → finish(). Nothing has its final name before finish(); a writer that is destroyed without
// it removes everything it wrote.
class FrameWriter {
 public:
  // By the name of `output`:
  //   x.mp4         H.264 4:2:0 (BT.709, visually lossless). An odd width or height gets one more column or row, a copy
  //                 of the last, as 4:2:0 has even sizes only.
  //   x.gif         256 colours chosen for the whole clip, ordered dither, endless loop; at most 50 frames a second.
  //                 All frames are kept in memory until finish().
  //   x%04d.png     one file per frame, counted from 0; the pattern is in the last part of the path
  //   x.png         one frame: this file; several: x-0000.png, x-0001.png, …
  //   x or x/       a folder (made if absent, its parent must exist) of 0000.png, 0001.png, …; files of these names
  //                 are replaced, others stay
  // Whatever can be known to go wrong is an Error here: an unknown extension, a missing or unwritable folder, an
  // impossible size. A full disk is an Error of the later calls.
  static std::unique_ptr<FrameWriter> open(const std::filesystem::path& output, const VideoFormat& format);
  virtual ~FrameWriter() = default;

  virtual void add_frame(const uint8_t* rgb) = 0;  // [H, W, 3]
  virtual void finish() = 0;                       // Error without any frame
  virtual PixelRounding rounding() const = 0;      // of to_u8(): truncating for .mp4 and .gif, rounding for .png

 protected:
  explicit FrameWriter(const VideoFormat& format) : format_(format) {}
  size_t frame_bytes() const { return static_cast<size_t>(format_.width) * static_cast<size_t>(format_.height) * 3; }
  const VideoFormat format_;
};

}  // namespace zoetrope::io
