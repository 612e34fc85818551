#include <png.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csetjmp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

// As ImageMagick 6 has EXIF in a text chunk: a line feed, two lines with kind and size, then bytes as hex digits in
// lines.
std::string of_raw_profile(std::string_view text) {
  constexpr int kLinesBefore = 3;
  for (int line = 0; line < kLinesBefore; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::string digits, bytes;
  std::ranges::remove_copy(text, std::back_inserter(digits), '\n');
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    uint8_t value = 0;
    const char* pair = digits.data() + i;
    if (std::from_chars(pair, pair + 2, value, 16).ptr != pair + 2) return {};
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

// libpng's errors are long jumps: nothing with a destructor may live in the functions they leave.
class PngDecoder {
 public:
  PngDecoder(std::string_view file, const std::filesystem::path& path)
      : rest_(file),
        path_(path),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning)),
        info_(png_ == nullptr ? nullptr : png_create_info_struct(png_)) {}
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  StoredImage decode() {
    if (info_ == nullptr) fail("{}: out of memory for the picture", path_.string());
    constexpr size_t kWidth = 16, kHeight = 20, kEnd = 24;  // where IHDR, the first chunk, has them
    if (rest_.size() >= kEnd) {
      const auto* bytes = reinterpret_cast<png_const_bytep>(rest_.data());
      check_image_size(png_get_uint_32(bytes + kHeight), png_get_uint_32(bytes + kWidth), path_);
    }
    check(read_header());
    check(prepare());
    const size_t height = png_get_image_height(png_, info_), row_bytes = png_get_rowbytes(png_, info_);
    std::vector<uint8_t> pixels(height * row_bytes);
    std::vector<png_bytep> rows(height);
    for (size_t y = 0; y < height; ++y) rows[y] = pixels.data() + y * row_bytes;
    check(read_rows(rows.data()));
    return {to_rgb(pixels, row_bytes), exif(), is_transparent(pixels), is_clipped(pixels)};
  }

 private:
  static PngDecoder& self(png_structp png) { return *static_cast<PngDecoder*>(png_get_error_ptr(png)); }
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    std::strncpy(self(png).message_, message, sizeof(message_) - 1);
    png_longjmp(png, 1);
  }
  // Where compressed data ends early or is wrong, libpng invents pixels: an error. Other warnings are about metadata,
  // or data beyond the last pixel.
  static void on_warning(png_structp png, png_const_charp message) {
    const std::string_view text(message);
    if (!text.starts_with("IDAT") || text.find("xtra") != text.npos || text.find("oo much") != text.npos) return;
    on_error(png, message);
  }
  static void on_read(png_structp png, png_bytep target, size_t count) {
    auto* decoder = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > decoder->rest_.size()) png_error(png, "it ends early");
    std::memcpy(target, decoder->rest_.data(), count);
    decoder->rest_.remove_prefix(count);
  }

  void check(bool good) const {
    if (!good) fail("{}: is a broken PNG: {}", path_.string(), message_);
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_image_size() was called
    png_read_info(png_, info_);
    return true;
  }

  // To grey or RGB, with or without alpha, of 8 or 16 bits.
  bool prepare() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, info_);
    return true;
  }

  Tensor to_rgb(const std::vector<uint8_t>& pixels, size_t row_bytes) const {
    const int64_t height = png_get_image_height(png_, info_), width = png_get_image_width(png_, info_);
    const size_t channels = png_get_channels(png_, info_), bytes = png_get_bit_depth(png_, info_) / 8;
    const bool colour = (png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) != 0, clip = clips();
    Tensor image = Tensor::uninitialized(DType::kU8, {height, width, 3});
    uint8_t* out = image.data<uint8_t>();
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* value = pixels.data() + static_cast<size_t>(y) * row_bytes;
      for (int64_t x = 0; x < width; ++x, value += channels * bytes, out += 3) {
        for (size_t c = 0; c < 3; ++c) out[c] = value[colour ? c * bytes : 0];  // of 16 bits the upper 8 come first
        if (clip) std::memset(out, value[0] != 0 ? 255 : value[1], 3);
      }
    }
    return image;
  }

  // Pillow clips where it does not scale.
  bool clips() const { return png_get_bit_depth(png_, info_) == 16 && png_get_channels(png_, info_) == 1; }

  bool is_clipped(const std::vector<uint8_t>& pixels) const {
    if (!clips()) return false;
    for (size_t i = 0; i < pixels.size(); i += 2)
      if (pixels[i] != 0 && pixels[i] != 255) return true;
    return false;
  }

  bool is_transparent(const std::vector<uint8_t>& pixels) const {
    if ((png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) == 0) return false;
    const size_t bytes = png_get_bit_depth(png_, info_) / 8, pixel = png_get_channels(png_, info_) * bytes;
    for (size_t i = pixel - bytes; i < pixels.size(); i += pixel)
      if (pixels[i] != 255) return true;
    return false;
  }

  std::string exif() {
    png_bytep data = nullptr;
    png_uint_32 size = 0;
    if (png_get_eXIf_1(png_, info_, &size, &data) != 0) return {reinterpret_cast<const char*>(data), size};
    png_textp texts = nullptr;
    const int count = png_get_text(png_, info_, &texts, nullptr);
    std::string found;
    for (int i = 0; i < count; ++i)
      if (std::string_view(texts[i].key) == "Raw profile type exif") found = of_raw_profile(texts[i].text);
    return found;
  }

  std::string_view rest_;
  const std::filesystem::path& path_;
  char message_[200] = {};
  png_structp png_;
  png_infop info_;
};

}  // namespace

StoredImage decode_png(std::string_view file, const std::filesystem::path& path) {
  return PngDecoder(file, path).decode();
}

// An animation has the number of its frames in a chunk before its first pixels, which readers of pictures skip.
bool is_animated_png(const std::filesystem::path& path) {
  constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
  constexpr std::streamoff kChecksum = 4;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe would be waited for
  std::ifstream file(path, std::ios::binary);
  std::array<char, 8> bytes{};
  const std::string_view text(bytes.data(), bytes.size()), kind = text.substr(4);
  const auto number = [&] { return png_get_uint_32(reinterpret_cast<png_const_bytep>(bytes.data())); };
  if (!file.read(bytes.data(), bytes.size()) || text != kSignature) return false;
  while (file.read(bytes.data(), bytes.size()) && kind != "IDAT") {
    if (kind == "acTL") return file.read(bytes.data(), bytes.size()) && number() > 1;
    file.seekg(number() + kChecksum, std::ios::cur);
  }
  return false;
}

}  // namespace zoetrope::io
