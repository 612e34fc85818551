// The files that hold one picture, decoded by libpng, libjpeg-turbo and libwebp, and which way up it is. Private to the
// module.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/media/image.h"

namespace zoetrope::io {

struct StoredImage {
  Tensor pixels;     // [H, W, 3] U8, as stored
  std::string exif;  // a TIFF structure, perhaps behind JPEG's "Exif\0\0", or empty
  bool transparent = false;
  bool clipped = false;  // as in Picture
};

// `file` is a whole file, with the signature of its kind. Error if it is broken: missing data is never invented. `path`
// is for errors.
StoredImage decode_png(std::string_view file, const std::filesystem::path& path);   // by libpng
StoredImage decode_jpeg(std::string_view file, const std::filesystem::path& path);  // by libjpeg-turbo
StoredImage decode_webp(std::string_view file, const std::filesystem::path& path);  // by libwebp; no animation

// Whether a PNG file has several frames; false where it is no PNG, or cannot be read.
bool is_animated_png(const std::filesystem::path& path);

// Error unless both sides are at least 1 and the pixels no more than kMaxImagePixels.
void check_image_size(int64_t height, int64_t width, const std::filesystem::path& path);

// EXIF's orientation, 1 to 8, from a TIFF structure as EXIF stores it; 1 (as stored) without one.
int exif_orientation(std::string_view tiff);

// image [H, W, 3] U8, stored with this orientation, turned upright.
Tensor upright(Tensor image, int orientation);

}  // namespace zoetrope::io
