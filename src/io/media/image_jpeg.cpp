#include <cstddef>
#include <cstdio>
// libjpeg's headers need these to be included first.
#include <jerror.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstring>

#include "base/error.h"
#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

constexpr std::string_view kExif("Exif\0\0", 6);
constexpr int kApp1 = JPEG_APP0 + 1, kMaxMarkerBytes = 0xffff;
constexpr int kMaxScans = 500;  // encoders write about ten; each costs a pass over the picture

// libjpeg's errors are long jumps: nothing with a destructor may live in the functions they leave.
class JpegDecoder {
 public:
  JpegDecoder(std::string_view file, const std::filesystem::path& path) : file_(file), path_(path) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }

  StoredImage decode() {
    check(read_header());
    if (jpeg_.num_components != 1 && jpeg_.num_components != 3) {
      fail("{}: is a JPEG of {} components (CMYK), but grey or RGB is needed; save it as RGB", path_.string(),
           jpeg_.num_components);
    }
    check_image_size(jpeg_.image_height, jpeg_.image_width, path_);
    StoredImage image{Tensor::uninitialized(DType::kU8, {jpeg_.image_height, jpeg_.image_width, 3}), exif()};
    check(read_rows(image.pixels.data<uint8_t>()));
    return image;
  }

 private:
  static JpegDecoder& self(j_common_ptr jpeg) { return *static_cast<JpegDecoder*>(jpeg->client_data); }
  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    jpeg->err->format_message(jpeg, self(jpeg).message_);
    std::longjmp(self(jpeg).jump_, 1);
  }
  // Level -1: a warning, after which libjpeg invents what is missing. Those that lose no pixel are ignored.
  static void on_message(j_common_ptr jpeg, int level) {
    const int code = jpeg->err->msg_code;
    const bool harmless = code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
    if (level < 0 && !harmless) on_error(jpeg);
  }
  static void on_progress(j_common_ptr jpeg) {
    auto* decompress = reinterpret_cast<j_decompress_ptr>(jpeg);
    if (decompress->input_scan_number <= kMaxScans) return;
    std::strcpy(self(jpeg).message_, "it has more scans than any encoder writes");
    std::longjmp(self(jpeg).jump_, 1);
  }

  void check(bool good) const {
    if (!good) fail("{}: is a broken JPEG: {}", path_.string(), message_);
  }

  bool read_header() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_save_markers(&jpeg_, kApp1, kMaxMarkerBytes);
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  bool read_rows(uint8_t* out) {
    if (setjmp(jump_) != 0) return false;
    jpeg_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = out + size_t{3} * jpeg_.output_width * jpeg_.output_scanline;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  std::string exif() const {
    for (jpeg_saved_marker_ptr marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
      if (marker->marker == kApp1 && data.starts_with(kExif)) return std::string(data.substr(kExif.size()));
    }
    return {};
  }

  std::string_view file_;
  const std::filesystem::path& path_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = {};
};

}  // namespace

StoredImage decode_jpeg(std::string_view file, const std::filesystem::path& path) {
  return JpegDecoder(file, path).decode();
}

}  // namespace zoetrope::io
