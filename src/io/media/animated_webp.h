// The frames of an animated WebP, by libwebpdemux: FFmpeg reads none. Private to the module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

struct WebPAnimDecoder;

namespace zoetrope::io {

// Whether a file begins as an animated WebP does; false where it is no file, or cannot be read.
bool is_animated_webp(const std::filesystem::path& path);

// A picture that is shown for k frames counts as k: encoders make one picture of equal frames.
class AnimatedWebp {
 public:
  // A broken file, also one that was cut off, is an Error naming it.
  explicit AnimatedWebp(const std::filesystem::path& path);

  Tensor next();  // [H, W, 3] U8 without alpha; empty behind the last
  int64_t count() const;
  double fps() const { return fps_; }                // 0 where its times say nothing
  bool transparent() const { return transparent_; }  // a frame of next() had an alpha that is less than opaque

 private:
  const std::filesystem::path path_;
  const std::string file_;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder_;
  std::vector<int64_t> repeats_;  // frames of each picture
  double fps_ = 0;
  size_t next_picture_ = 0;
  int64_t left_ = 0;               // frames of the picture before that
  const uint8_t* rgba_ = nullptr;  // its pixels, of the decoder
  int64_t height_ = 0, width_ = 0;
  bool transparent_ = false;
};

}  // namespace zoetrope::io
