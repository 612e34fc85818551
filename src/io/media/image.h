// Reads and resizes still pictures, byte by byte as the reference's image library (Pillow) does. Knows pixels and
// files, no models. Videos are in video_reader.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "zoetrope/tensor.h"

namespace zoetrope::io {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// The most pixels of a picture or frame; more is refused before anything is decoded.
inline constexpr int64_t kMaxImagePixels = 100'000'000;

// A PNG, JPEG or WebP file as [H, W, 3] U8 RGB: alpha is dropped, palettes and grey are expanded, of 16 bits the upper
// 8 are kept (grey of 16 bits is clipped at 255, as the reference has it), and EXIF orientation is applied. Decoded by
// libpng, libjpeg-turbo and libwebp. What is absent, none of these, an animation, broken (also where only a row is
// missing), of CMYK, or too large is an Error naming it.
Tensor read_image(const std::filesystem::path& path);

struct Picture {
  Tensor pixels;             // as of read_image()
  bool transparent = false;  // where alpha would be less than opaque
  bool clipped = false;      // grey of 16 bits, and some of it is white that would be darker with 8
};
Picture read_picture(const std::filesystem::path& path);

enum class ResizeFilter : uint8_t { kBicubic, kLanczos };

// image [H, W, 3] U8, rows at any stride → [size, 3] U8: convolution with the filter, widened by the scale where the
// picture shrinks, one axis after the other, rounded to bytes in between. The same size is a plain copy.
Tensor resize(const TensorView& image, ImageSize size, ResizeFilter filter);

}  // namespace zoetrope::io
