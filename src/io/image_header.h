// What a PNG or JPEG file says of itself before anything is decoded: its kind, its size, which way up it is. Private to
// the room.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/image.h"

namespace zoetrope::io {

enum class ImageKind : uint8_t { kPng, kJpeg };

struct ImageHeader {
  ImageKind kind = ImageKind::kPng;
  ImageSize size;       // as stored, before the orientation
  int orientation = 1;  // EXIF's number, 1 to 8; 1: as stored
};

// Error where the bytes are neither, end too early, or are of a size or kind that is refused. `path` is for errors.
ImageHeader read_image_header(std::string_view bytes, const std::filesystem::path& path);

// image [H, W, 3] U8, stored with this orientation, as it is to be seen.
Tensor upright(Tensor image, int orientation);

}  // namespace zoetrope::io
