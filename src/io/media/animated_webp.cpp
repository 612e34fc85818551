#include "io/media/animated_webp.h"

#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/input_file.h"
#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

constexpr size_t kMaxFileBytes = size_t{4} << 30;  // what RIFF can hold

WebPData data_of(const std::string& file) { return {reinterpret_cast<const uint8_t*>(file.data()), file.size()}; }

// Before the decoder gets memory for them.
void check_size(const std::string& file, const std::filesystem::path& path) {
  WebPBitstreamFeatures features;
  const WebPData data = data_of(file);
  if (WebPGetFeatures(data.bytes, data.size, &features) != VP8_STATUS_OK) fail("{}: is a broken WebP", path.string());
  check_image_size(features.height, features.width, path);
}

WebPAnimDecoder* open(const std::string& file, const std::filesystem::path& path) {
  check_size(file, path);
  const WebPData data = data_of(file);
  WebPAnimDecoderOptions options;
  WebPAnimDecoderOptionsInit(&options);
  options.color_mode = MODE_RGBA;
  return WebPAnimDecoderNew(&data, &options);
}

std::vector<int64_t> milliseconds_of_pictures(const WebPDemuxer* demuxer) {
  std::vector<int64_t> times;
  WebPIterator picture;
  for (int more = WebPDemuxGetFrame(demuxer, 1, &picture); more != 0; more = WebPDemuxNextFrame(&picture))
    times.push_back(picture.duration);
  WebPDemuxReleaseIterator(&picture);
  return times;
}

// The most that a time is off a whole number of frames of this length.
double largest_rest(const std::vector<int64_t>& times, double frame) {
  double rest = 0;
  for (const int64_t time : times) {
    const auto exact = static_cast<double>(time);
    rest = std::max(rest, std::abs(exact - std::round(exact / frame) * frame));
  }
  return rest;
}

// Milliseconds of a frame, of which all times are multiples; 0 where there is none. Times lie between two that were
// rounded, so each is off by less than one. Where only one is short, several rates fit: usual ones come first. The
// times of a GIF are whole hundredths of a second: 30, 30 and 40 ms are three frames and not ten.
double frame_time(const std::vector<int64_t>& times) {
  constexpr int kMostFps = 100, kMostHeldFpsOfGif = 60, kMostFrames = 3;  // of the shortest time
  constexpr int kUsualFps[] = {16, 24, 30, 25, 60, 50, 15, 12, 8};
  const bool as_in_gif = std::ranges::all_of(times, [](int64_t time) { return time % 10 == 0; });
  const auto shortest = static_cast<double>(*std::min_element(times.begin(), times.end()));
  for (int frames = 1; frames <= kMostFrames; ++frames) {
    if (shortest / frames < 1000.0 / (frames > 1 && as_in_gif ? kMostHeldFpsOfGif : kMostFps)) break;
    const auto fits = [&](double frame) {
      return std::abs(frame * frames - shortest) < 1 && largest_rest(times, frame) < 1;
    };
    for (const int fps : kUsualFps)
      if (fits(1000.0 / fps)) return 1000.0 / fps;
    if (fits(shortest / frames)) return shortest / frames;
    for (int fps = 1; fps <= kMostFps; ++fps)
      if (fits(1000.0 / fps)) return 1000.0 / fps;
  }
  return 0;
}

}  // namespace

bool is_animated_webp(const std::filesystem::path& path) {
  constexpr size_t kFlags = 20;
  constexpr uint8_t kAnimation = 2;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe would be waited for
  std::array<char, kFlags + 1> start{};
  std::ifstream(path, std::ios::binary).read(start.data(), start.size());
  const std::string_view text(start.data(), start.size());
  return text.starts_with("RIFF") && text.substr(8, 8) == "WEBPVP8X" && (start[kFlags] & kAnimation) != 0;
}

AnimatedWebp::AnimatedWebp(const std::filesystem::path& path)
    : path_(path), file_(read_file(path, kMaxFileBytes)), decoder_(open(file_, path), WebPAnimDecoderDelete) {
  WebPAnimInfo info;
  if (decoder_ == nullptr || WebPAnimDecoderGetInfo(decoder_.get(), &info) == 0 || info.frame_count == 0)
    fail("{}: is a broken WebP: its frames are incomplete or damaged", path.string());
  height_ = info.canvas_height;
  width_ = info.canvas_width;
  repeats_ = milliseconds_of_pictures(WebPAnimDecoderGetDemuxer(decoder_.get()));
  const double frame = frame_time(repeats_);
  if (frame > 0) fps_ = 1000 / frame;
  for (int64_t& time : repeats_) time = frame == 0 ? 1 : std::llround(static_cast<double>(time) / frame);
}

int64_t AnimatedWebp::count() const { return std::accumulate(repeats_.begin(), repeats_.end(), int64_t{0}); }

Tensor AnimatedWebp::next() {
  if (left_ == 0) {
    if (next_picture_ == repeats_.size()) return {};
    uint8_t* pixels = nullptr;
    int end = 0;  // milliseconds
    if (WebPAnimDecoderGetNext(decoder_.get(), &pixels, &end) == 0)
      fail("{}: picture {} is damaged", path_.string(), next_picture_);
    rgba_ = pixels;
    left_ = repeats_[next_picture_++];
  }
  --left_;
  Tensor frame = Tensor::uninitialized(DType::kU8, {height_, width_, 3});
  uint8_t* rgb = frame.data<uint8_t>();
  uint8_t alpha = 255;
  for (int64_t i = 0; i < height_ * width_; ++i) {
    std::copy_n(rgba_ + 4 * i, 3, rgb + 3 * i);
    alpha &= rgba_[4 * i + 3];
  }
  transparent_ = transparent_ || alpha != 255;
  return frame;
}

}  // namespace zoetrope::io
