#include <cstring>

#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

constexpr uint32_t kOrientationTag = 0x0112;

// Reads numbers of either byte order at any offset; 0 beyond the end.
struct Bytes {
  std::string_view text;
  bool little = false;

  uint32_t byte(size_t at) const { return at < text.size() ? static_cast<uint8_t>(text[at]) : 0u; }
  uint32_t u16(size_t at) const { return little ? byte(at) | byte(at + 1) << 8 : byte(at) << 8 | byte(at + 1); }
  uint32_t u32(size_t at) const { return little ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2); }
};

}  // namespace

int exif_orientation(std::string_view tiff) {
  // JPEG's marker, which other files may have in front of the structure.
  constexpr std::string_view kMarker("Exif\0\0", 6);
  if (tiff.starts_with(kMarker)) tiff.remove_prefix(kMarker.size());
  const Bytes bytes{tiff, tiff.starts_with("II")};
  if (!bytes.little && !tiff.starts_with("MM")) return 1;
  constexpr size_t kEntryBytes = 12, kShort = 3, kLong = 4;
  const size_t directory = bytes.u32(4);
  for (size_t i = 0; i < bytes.u16(directory); ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (entry >= tiff.size()) return 1;
    const uint32_t type = bytes.u16(entry + 2);
    if (bytes.u16(entry) != kOrientationTag || (type != kShort && type != kLong)) continue;
    const uint32_t value = type == kShort ? bytes.u16(entry + 8) : bytes.u32(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Tensor upright(Tensor image, int orientation) {
  if (orientation == 1) return image;
  const int64_t height = image.extent(0), width = image.extent(1);
  // EXIF: 2 mirrored, 3 turned by 180 degrees, 4 upside down mirrored, 5 transposed, 6 needs a quarter turn clockwise,
  // 7 transposed about the other diagonal, 8 needs a quarter turn back.
  const bool transposed = orientation >= 5;
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Tensor turned = Tensor::uninitialized(DType::kU8, {transposed ? width : height, transposed ? height : width, 3});
  const uint8_t* from = image.data<uint8_t>();
  uint8_t* to = turned.data<uint8_t>();
  for (int64_t y = 0; y < turned.extent(0); ++y) {
    for (int64_t x = 0; x < turned.extent(1); ++x, to += 3) {
      const int64_t row = transposed ? x : y, column = transposed ? y : x;
      const int64_t source_row = from_below ? height - 1 - row : row;
      const int64_t source_column = from_right ? width - 1 - column : column;
      std::memcpy(to, from + (source_row * width + source_column) * 3, 3);
    }
  }
  return turned;
}

}  // namespace zoetrope::io
