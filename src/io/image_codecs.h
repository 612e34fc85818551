// The files that hold one picture, by the libraries that everybody decodes them with. Private to the module.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/image.h"

namespace zoetrope::io {

struct StoredImage {
  Tensor pixels;     // [H, W, 3] U8, as stored
  std::string exif;  // a TIFF structure, or empty
};

// A whole file, whose first bytes are of the kind. Error where it is broken: what is missing is never made up. `path`
// is for errors.
StoredImage decode_png(std::string_view file, const std::filesystem::path& path);   // by libpng
StoredImage decode_jpeg(std::string_view file, const std::filesystem::path& path);  // by libjpeg-turbo

// Error unless both sides are at least 1 and the pixels no more than kMaxImagePixels.
void check_image_size(int64_t height, int64_t width, const std::filesystem::path& path);

}  // namespace zoetrope::io
