#include "io/media/image.h"

#include <optional>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;  // 100 megapixels of four 16-bit values are less
constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);
constexpr std::string_view kJpegStart("\xff\xd8\xff", 3);
constexpr std::string_view kRiff = "RIFF", kWebp = "WEBP";  // at 0 and at 8

}  // namespace

void check_image_size(int64_t height, int64_t width, const std::filesystem::path& path) {
  if (height <= 0 || width <= 0) {
    fail("{}: the picture has {} x {} pixels, but both sides must be at least 1", path.string(), width, height);
  }
  if (height > kMaxImagePixels / width) {
    fail("{}: the picture has {} x {} pixels, more than the {} that are read", path.string(), width, height,
         kMaxImagePixels);
  }
}

Tensor read_image(const std::filesystem::path& path) { return read_picture(path).pixels; }

Picture read_picture(const std::filesystem::path& path) {
  const std::string file = read_file(path, kMaxFileBytes);
  std::optional<StoredImage> stored;
  if (file.starts_with(kPngSignature)) {
    if (is_animated_png(path)) fail("{}: is an animation; save one picture of it", path.string());
    stored = decode_png(file, path);
  }
  if (file.starts_with(kJpegStart)) stored = decode_jpeg(file, path);
  if (file.starts_with(kRiff) && file.find(kWebp, 8) == 8) stored = decode_webp(file, path);
  if (!stored) fail("{}: is not a picture: PNG, JPEG and WebP can be read", path.string());
  return {upright(std::move(stored->pixels), exif_orientation(stored->exif)), stored->transparent, stored->clipped};
}

}  // namespace zoetrope::io
