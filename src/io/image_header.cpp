#include "io/image_header.h"

#include <cstring>
#include <optional>

#include "base/error.h"

namespace zoetrope::io {
namespace {

constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);
constexpr std::string_view kJpegStart("\xff\xd8\xff", 3);
constexpr std::string_view kJpegEnd("\xff\xd9", 2);
constexpr std::string_view kExif("Exif\0\0", 6);
constexpr uint32_t kOrientationTag = 0x0112;

// Numbers of either byte order at any place of a text; places beyond its end hold 0.
struct Bytes {
  std::string_view text;
  bool little = false;

  uint32_t byte(size_t at) const { return at < text.size() ? static_cast<uint8_t>(text[at]) : 0u; }
  uint32_t u16(size_t at) const { return little ? byte(at) | byte(at + 1) << 8 : byte(at) << 8 | byte(at + 1); }
  uint32_t u32(size_t at) const { return little ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2); }
};

// From a TIFF structure as EXIF stores it; 1 where it holds none.
int exif_orientation(std::string_view tiff) {
  const Bytes bytes{tiff, tiff.starts_with("II")};
  if (!bytes.little && !tiff.starts_with("MM")) return 1;
  constexpr size_t kEntryBytes = 12, kShort = 3;
  const size_t directory = bytes.u32(4);
  for (size_t i = 0; i < bytes.u16(directory); ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (entry >= tiff.size()) return 1;
    if (bytes.u16(entry) != kOrientationTag || bytes.u16(entry + 2) != kShort) continue;
    const uint32_t value = bytes.u16(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// Signature, then chunks: length, four letters, data, CRC. The first is IHDR.
ImageHeader png_header(std::string_view text) {
  const Bytes bytes{text};
  constexpr size_t kFrame = 12, kLetters = 4;  // of a chunk, beside its data
  ImageHeader header;
  header.kind = ImageKind::kPng;
  if (text.size() >= kFrame + kLetters && text.substr(kFrame, kLetters) == "IHDR")
    header.size = {bytes.u32(20), bytes.u32(16)};
  for (size_t at = kPngSignature.size(); at + kFrame <= text.size(); at += bytes.u32(at) + kFrame) {
    if (text.substr(at + 4, kLetters) == "eXIf")
      header.orientation = exif_orientation(text.substr(at + 8, bytes.u32(at)));
  }
  return header;
}

// Markers of two bytes, most followed by a length that counts itself. SOF carries the size.
ImageHeader jpeg_header(std::string_view text, const std::filesystem::path& path) {
  const Bytes bytes{text};
  ImageHeader header;
  header.kind = ImageKind::kJpeg;
  for (size_t at = 2; at + 4 <= text.size();) {
    const uint32_t marker = bytes.byte(at + 1);
    if (bytes.byte(at) != 0xff) break;
    if (marker == 0xff) {  // filling
      ++at;
      continue;
    }
    const size_t length = bytes.u16(at + 2);
    const std::string_view body = text.substr(at + 4, length < 2 ? 0 : length - 2);
    if (marker == 0xe1 && body.starts_with(kExif)) header.orientation = exif_orientation(body.substr(kExif.size()));
    const bool start_of_frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (start_of_frame) {
      header.size = {bytes.u16(at + 5), bytes.u16(at + 7)};
      const uint32_t components = bytes.byte(at + 9);
      if (components != 1 && components != 3) {
        fail("{}: is a JPEG of {} components (CMYK), but grey or RGB is needed; save it as RGB", path.string(),
             components);
      }
      // Nothing else has these two bytes behind a frame's header; decoders fill up what is missing with grey.
      if (text.find(kJpegEnd, at) == text.npos) fail("{}: is a broken JPEG: it ends early", path.string());
      return header;
    }
    at += 2 + length;
  }
  fail("{}: is a broken JPEG: it has no frame header", path.string());
}

}  // namespace

ImageHeader read_image_header(std::string_view bytes, const std::filesystem::path& path) {
  std::optional<ImageHeader> header;
  if (bytes.starts_with(kPngSignature)) header = png_header(bytes);
  if (bytes.starts_with(kJpegStart)) header = jpeg_header(bytes, path);
  if (!header) fail("{}: is not a picture: PNG and JPEG can be read", path.string());
  const auto [height, width] = header->size;
  if (height == 0 || width == 0) {
    fail("{}: the picture has {} x {} pixels, but both sides must be at least 1", path.string(), width, height);
  }
  if (height > kMaxImagePixels / width) {
    fail("{}: the picture has {} x {} pixels, more than the {} that are read", path.string(), width, height,
         kMaxImagePixels);
  }
  return *header;
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
