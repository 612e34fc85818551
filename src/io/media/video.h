// Writes a video to an .mp4, a .gif or numbered .png files. Knows pixels and files, not models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "zoetrope/video.h"

namespace zoetrope::io {

// From a value in [0, 1] (others are clamped, NaN is 0) to a byte. There are two because the reference has two: its
// video writer truncates 255·x, its image writer rounds it (half to even).
uint8_t to_u8_truncate(float value);
uint8_t to_u8_round(float value);

// The same for many values: bytes [values.size()].
void to_u8(PixelRounding rounding, std::span<const float> values, uint8_t* bytes);

// Loads now what writing this file will need, if it can be: code that is loaded later would count as memory of the run.
void load_writer_of(const std::filesystem::path& output);

// Throws Error for a format that files of this name cannot have, whether or not they can be written. Opens nothing.
void check_video_format(const std::filesystem::path& output, const VideoFormat& format);

// What a clip of so many frames is written to: `output` itself, or a picture for each.
std::vector<std::filesystem::path> files_of_clip(const std::filesystem::path& output, int64_t frames);

// Pictures of an older, longer clip, which are removed when one of so many frames is complete.
std::vector<std::filesystem::path> later_files(const std::filesystem::path& output, int64_t frames);

// What writing such a clip of format.frames holds at most, besides the frames of a .gif; 0 where that is next to
// nothing.
int64_t encoder_bytes(const std::filesystem::path& output, const VideoFormat& format);

// A sink that writes a file or a folder; zoetrope/video.h says which.
class FrameWriter : public FrameSink {
 public:
  static std::unique_ptr<FrameWriter> open(const std::filesystem::path& output, const VideoFormat& format);

 protected:
  explicit FrameWriter(const VideoFormat& format) : format_(format) {}
  size_t frame_bytes() const { return static_cast<size_t>(format_.width) * static_cast<size_t>(format_.height) * 3; }
  const VideoFormat format_;
};

}  // namespace zoetrope::io
