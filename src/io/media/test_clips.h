// For the tests of this module: clips of smooth colours, written by FrameWriter.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/media/video.h"

namespace zoetrope::io {

inline VideoFormat format_of(int width, int height, double fps = 16) { return {width, height, fps, {}}; }

// Frame `index` of a clip whose colour changes: a smooth ramp over a flat tone.
inline std::vector<uint8_t> frame_of(int width, int height, int index) {
  std::vector<uint8_t> rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(60 + 20 * index + 32 * x / width));
      rgb.push_back(static_cast<uint8_t>(200 - 20 * index));
      rgb.push_back(static_cast<uint8_t>(90 + 32 * y / height));
    }
  }
  return rgb;
}

inline std::array<double, 3> mean_colour(const uint8_t* rgb, int64_t pixels) {
  std::array<double, 3> mean{};
  for (int64_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) mean[c] += static_cast<double>(rgb[3 * i + static_cast<int64_t>(c)]);
  }
  for (double& value : mean) value /= static_cast<double>(pixels);
  return mean;
}

inline void write_clip(const std::filesystem::path& path, const VideoFormat& format, int frames) {
  const auto writer = FrameWriter::open(path, format);
  for (int i = 0; i < frames; ++i) writer->add_frame(frame_of(format.width, format.height, i).data());
  writer->finish();
}

}  // namespace zoetrope::io
