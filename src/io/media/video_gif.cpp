#include <cmath>
#include <vector>

#include "base/error.h"
#include "io/media/palette.h"
#include "io/media/video_plugin_host.h"
#include "io/media/video_writers.h"

namespace zoetrope::io {

namespace {

constexpr int kTicks = 100;        // of a second
constexpr double kMaxGifFps = 50;  // delays count hundredths of a second, and players slow down below two

// Ordered dither by Bayer's 8 × 8 matrix: it is the same in every frame, where error diffusion would flicker.
constexpr int kBayer[8][8] = {{0, 32, 8, 40, 2, 34, 10, 42},  {48, 16, 56, 24, 50, 18, 58, 26},
                              {12, 44, 4, 36, 14, 46, 6, 38}, {60, 28, 52, 20, 62, 30, 54, 22},
                              {3, 35, 11, 43, 1, 33, 9, 41},  {51, 19, 59, 27, 49, 17, 57, 25},
                              {15, 47, 7, 39, 13, 45, 5, 37}, {63, 31, 55, 23, 61, 29, 53, 21}};
// Half the distance of neighbouring colours in a typical palette of 256, in steps of a byte.
constexpr int kDitherSteps = 4;

// Around 0, from −kDitherSteps to kDitherSteps.
int dither(int x, int y) { return (kDitherSteps * (2 * kBayer[y % 8][x % 8] - 63) + 32) >> 6; }

EncodedFormat gif(const std::filesystem::path& path, const VideoFormat& format) {
  if (format.fps > kMaxGifFps) {
    fail("{}: a .gif shows at most {} frames per second, but {} are requested", path.string(), kMaxGifFps, format.fps);
  }
  return {.container = "gif",
          .encoder = "gif",
          .codec_tag = "",
          .pixels = kVideoPalette,
          .width = format.width,
          .height = format.height,
          .fps = format.fps,
          .ticks = kTicks,
          .encoder_options = {},
          .container_options = {{"loop", "0"}},  // for ever
          .tags = {}};
}

class GifWriter final : public FrameWriter {
 public:
  GifWriter(const std::filesystem::path& path, const VideoFormat& format)
      : FrameWriter(format), path_(path), encoder_(path, gif(path, format)) {}

  PixelRounding rounding() const override { return PixelRounding::kTruncate; }

  void add_frame(const uint8_t* rgb) override {
    frames_.emplace_back(rgb, rgb + frame_bytes());
    histogram_.add(rgb, frame_bytes() / 3);
  }

  void finish() override {
    if (frames_.empty()) fail("{}: no frame was added, so there is nothing to write", path_.string());
    Palette palette(histogram_);
    uint32_t colours[Palette::kColours] = {};
    for (size_t i = 0; i < Palette::kColours; ++i) {
      const Rgb c = i < palette.colours().size() ? palette.colours()[i] : Rgb{};
      colours[i] = 0xff000000u | static_cast<uint32_t>(c.r) << 16 | static_cast<uint32_t>(c.g) << 8 | c.b;
    }
    for (size_t i = 0; i < frames_.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      encoder_.add_frame(indices_of(frames_[i].data(), palette), colours, time(index), time(index + 1) - time(index));
    }
    encoder_.finish();
  }

 private:
  int64_t time(int64_t index) const { return std::llround(static_cast<double>(index) * kTicks / format_.fps); }

  const uint8_t* indices_of(const uint8_t* rgb, Palette& palette) {
    indices_.clear();
    for (int y = 0; y < format_.height; ++y) {
      for (int x = 0; x < format_.width; ++x, rgb += 3) {
        const int shift = dither(x, y);
        indices_.push_back(palette.nearest(rgb[0] + shift, rgb[1] + shift, rgb[2] + shift));
      }
    }
    return indices_.data();
  }

  const std::filesystem::path path_;
  VideoEncoder encoder_;
  std::vector<std::vector<uint8_t>> frames_;
  Palette::Histogram histogram_;
  std::vector<uint8_t> indices_;  // of a frame
};

}  // namespace

std::unique_ptr<FrameWriter> open_gif(const std::filesystem::path& path, const VideoFormat& format) {
  return std::make_unique<GifWriter>(path, format);
}

}  // namespace zoetrope::io
