#include "io/video.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/video_writers.h"

namespace zoetrope::io {

namespace {

constexpr int kMaxSize = 16384;  // of H.264 and of any sensible clip
constexpr double kMaxFps = 1000;

float clamp_to_unit(float value) { return value > 0 ? std::min(value, 1.0f) : 0.0f; }  // NaN is not above 0

}  // namespace

uint8_t to_u8_truncate(float value) { return static_cast<uint8_t>(255.0f * clamp_to_unit(value)); }
uint8_t to_u8_round(float value) { return static_cast<uint8_t>(std::nearbyint(255.0f * clamp_to_unit(value))); }

void FrameWriter::add_frame_float(const float* rgb) {
  std::vector<uint8_t> bytes(frame_bytes());
  std::transform(rgb, rgb + bytes.size(), bytes.begin(),
                 rounding() == PixelRounding::kTruncate ? to_u8_truncate : to_u8_round);
  add_frame(bytes.data());
}

std::unique_ptr<FrameWriter> FrameWriter::open(const std::filesystem::path& output, const VideoFormat& format) {
  if (format.width < 1 || format.width > kMaxSize || format.height < 1 || format.height > kMaxSize) {
    fail("{}: frames of {} x {} cannot be written; each side must be from 1 to {}", output.string(), format.width,
         format.height, kMaxSize);
  }
  if (!(format.fps > 0 && format.fps <= kMaxFps)) {
    fail("{}: {} frames per second cannot be written; it must be above 0 and at most {}", output.string(), format.fps,
         kMaxFps);
  }
  if (output.empty()) fail("the name of the video to write is empty");
  std::string extension = output.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code ignored;
  if (extension.empty() || std::filesystem::is_directory(output, ignored) || extension == ".png") {
    return open_png(output, format);
  }
  if (extension == ".mp4") return open_mp4(output, format);
  if (extension == ".gif") return open_gif(output, format);
  fail("{}: unknown extension '{}'; use .mp4, .gif, .png (with a number such as %04d for several), or a folder",
       output.string(), extension);
}

}  // namespace zoetrope::io
