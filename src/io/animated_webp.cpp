#include "io/animated_webp.h"

#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/input_file.h"
#include "io/image_codecs.h"

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

std::vector<int64_t> repeats(const WebPDemuxer* demuxer) {
  constexpr int64_t kShortest = 10;  // milliseconds; less is no time for a viewer either
  std::vector<int64_t> times;
  WebPIterator picture;
  for (int more = WebPDemuxGetFrame(demuxer, 1, &picture); more != 0; more = WebPDemuxNextFrame(&picture))
    times.push_back(picture.duration);
  WebPDemuxReleaseIterator(&picture);
  const int64_t shortest = *std::min_element(times.begin(), times.end());
  for (int64_t& time : times) time = shortest < kShortest ? 1 : (time + shortest / 2) / shortest;
  return times;
}

}  // namespace

bool is_animated_webp(const std::filesystem::path& path) {
  constexpr size_t kFlags = 20;
  constexpr uint8_t kAnimation = 2;
  std::array<char, kFlags + 1> start{};
  std::ifstream(path, std::ios::binary).read(start.data(), start.size());
  const std::string_view text(start.data(), start.size());
  return text.starts_with("RIFF") && text.substr(8, 8) == "WEBPVP8X" && (start[kFlags] & kAnimation) != 0;
}

AnimatedWebp::AnimatedWebp(const std::filesystem::path& path)
    : path_(path), file_(read_file(path, kMaxFileBytes)), decoder_(open(file_, path), WebPAnimDecoderDelete) {
  WebPAnimInfo info;
  if (decoder_ == nullptr || WebPAnimDecoderGetInfo(decoder_.get(), &info) == 0)
    fail("{}: is a broken WebP: its frames are incomplete or damaged", path.string());
  height_ = info.canvas_height;
  width_ = info.canvas_width;
  repeats_ = repeats(WebPAnimDecoderGetDemuxer(decoder_.get()));
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
  for (int64_t i = 0; i < height_ * width_; ++i) std::copy_n(rgba_ + 4 * i, 3, rgb + 3 * i);
  return frame;
}

}  // namespace zoetrope::io
