#include "io/image_planes.h"

extern "C" {
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"

namespace zoetrope::io {
namespace {

uint8_t clamp_to_byte(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// ---- YCbCr ----

// One plane of chroma with a sample for 2^shift columns and rows, brought to full size row by row. Halved axes are
// interpolated (weights 3/4 and 1/4, ties broken up and down in turn), others repeated: libjpeg's "fancy upsampling".
class ChromaRows {
 public:
  ChromaRows(const uint8_t* plane, int stride, int width, int height, int shift_x, int shift_y)
      : plane_(plane), stride_(stride), width_(width), height_(height), shift_x_(shift_x), shift_y_(shift_y) {
    sums_.resize(static_cast<size_t>(width));
    // libjpeg repeats what has too few columns to interpolate.
    constexpr int kFewColumns = 2;
    smooth_x_ = shift_x == 1 && width > kFewColumns;
    smooth_y_ = shift_y == 1 && (shift_x == 0 || smooth_x_);
  }

  // Row y of the full picture; out [columns], columns ≤ width << shift_x.
  void row(int y, std::span<uint8_t> out) {
    const int near = y >> shift_y_;
    const uint8_t* row = sample_row(near);
    if (!smooth_x_ && !smooth_y_) {
      for (size_t x = 0; x < out.size(); ++x) out[x] = row[x >> shift_x_];
      return;
    }
    // Sums of the two rows, of weight 4 in all; of one row alone, of weight 1.
    const bool lower = (y & 1) != 0;
    const uint8_t* other = sample_row(near + (lower ? 1 : -1));
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] = smooth_y_ ? 3 * row[i] + other[i] : row[i];
    if (!smooth_x_) {
      for (size_t x = 0; x < out.size(); ++x) out[x] = static_cast<uint8_t>((sums_[x] + (lower ? 2 : 1)) >> 2);
      return;
    }
    const int shift = smooth_y_ ? 4 : 2, left_bias = smooth_y_ ? 8 : 1, right_bias = smooth_y_ ? 7 : 2;
    for (size_t x = 0; x < out.size(); ++x) {
      const size_t i = x / 2;
      const bool right = x % 2 != 0;
      const size_t neighbour = right ? std::min(i + 1, sums_.size() - 1) : (i == 0 ? 0 : i - 1);
      out[x] = static_cast<uint8_t>((3 * sums_[i] + sums_[neighbour] + (right ? right_bias : left_bias)) >> shift);
    }
  }

 private:
  const uint8_t* sample_row(int y) const {
    return plane_ + static_cast<ptrdiff_t>(std::clamp(y, 0, height_ - 1)) * stride_;
  }

  const uint8_t* plane_;
  int stride_, width_, height_, shift_x_, shift_y_;
  bool smooth_x_ = false, smooth_y_ = false;
  std::vector<int> sums_;
};

// What the chroma samples add, in 16-bit fixed point.
struct ColourTables {
  std::array<int, 256> red_of_cr, blue_of_cb, green_of_cr, green_of_cb;
  ColourTables() {
    constexpr int kOne = 1 << 16, kHalf = kOne / 2, kCentre = 128;
    const auto fixed = [](double x) { return static_cast<int>(x * kOne + 0.5); };
    for (int i = 0; i < 256; ++i) {
      const auto at = static_cast<size_t>(i);
      const int x = i - kCentre;
      red_of_cr[at] = (fixed(1.40200) * x + kHalf) >> 16;
      blue_of_cb[at] = (fixed(1.77200) * x + kHalf) >> 16;
      green_of_cr[at] = -fixed(0.71414) * x;
      green_of_cb[at] = -fixed(0.34414) * x + kHalf;
    }
  }
};

void ycc_to_rgb(const AVFrame& frame, const AVPixFmtDescriptor& format, uint8_t* out) {
  static const ColourTables tables;
  const int chroma_width = -(-frame.width >> format.log2_chroma_w);
  const int chroma_height = -(-frame.height >> format.log2_chroma_h);
  const auto rows_of = [&](int plane) {
    return ChromaRows(frame.data[plane], frame.linesize[plane], chroma_width, chroma_height, format.log2_chroma_w,
                      format.log2_chroma_h);
  };
  ChromaRows cb_rows = rows_of(1), cr_rows = rows_of(2);
  std::vector<uint8_t> cb(static_cast<size_t>(frame.width)), cr(cb.size());
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* luma = frame.data[0] + static_cast<ptrdiff_t>(y) * frame.linesize[0];
    cb_rows.row(y, cb);
    cr_rows.row(y, cr);
    for (size_t x = 0; x < cb.size(); ++x, out += 3) {
      out[0] = clamp_to_byte(luma[x] + tables.red_of_cr[cr[x]]);
      out[1] = clamp_to_byte(luma[x] + ((tables.green_of_cb[cb[x]] + tables.green_of_cr[cr[x]]) >> 16));
      out[2] = clamp_to_byte(luma[x] + tables.blue_of_cb[cb[x]]);
    }
  }
}

// ---- everything else ----

// pixel(row, x, rgb) for every pixel of a format with one plane.
template <typename Pixel>
void each_pixel(const AVFrame& frame, uint8_t* out, Pixel&& pixel) {
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* row = frame.data[0] + static_cast<ptrdiff_t>(y) * frame.linesize[0];
    for (int x = 0; x < frame.width; ++x, out += 3) pixel(row, x, out);
  }
}

// Grey at every `step` bytes.
void grey_to_rgb(const AVFrame& frame, int step, uint8_t* out) {
  each_pixel(frame, out, [step](const uint8_t* row, int x, uint8_t* rgb) { std::memset(rgb, row[step * x], 3); });
}

// Red, green, blue at every `step` bytes, `apart` bytes from one to the next: of 16-bit values the upper byte is first.
void colours_to_rgb(const AVFrame& frame, int step, int apart, uint8_t* out) {
  each_pixel(frame, out, [step, apart](const uint8_t* row, int x, uint8_t* rgb) {
    for (int c = 0; c < 3; ++c) rgb[c] = row[step * x + apart * c];
  });
}

void palette_to_rgb(const AVFrame& frame, uint8_t* out) {
  std::array<uint32_t, 256> palette;  // 0xAARRGGBB
  std::memcpy(palette.data(), frame.data[1], sizeof palette);
  each_pixel(frame, out, [&palette](const uint8_t* row, int x, uint8_t* rgb) {
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(palette[row[x]] >> (16 - 8 * c));
  });
}

void planar_to_rgb(const AVFrame& frame, uint8_t* out) {
  constexpr std::array<int, 3> kPlaneOf{2, 0, 1};  // stored as green, blue, red
  for (int y = 0; y < frame.height; ++y) {
    for (int x = 0; x < frame.width; ++x, out += 3) {
      for (int c = 0; c < 3; ++c) {
        const int plane = kPlaneOf[static_cast<size_t>(c)];
        out[c] = frame.data[plane][static_cast<ptrdiff_t>(y) * frame.linesize[plane] + x];
      }
    }
  }
}

}  // namespace

Tensor planes_to_rgb(const AVFrame& frame, const std::filesystem::path& path) {
  Tensor image = Tensor::uninitialized(DType::kU8, {frame.height, frame.width, 3});
  uint8_t* out = image.data<uint8_t>();
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* description = av_pix_fmt_desc_get(format);
  switch (format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ444P:
    case AV_PIX_FMT_YUVJ411P:
    case AV_PIX_FMT_YUV420P:  // a comment in the file may ask for the range of video, which libjpeg does not follow
    case AV_PIX_FMT_YUV422P:
    case AV_PIX_FMT_YUV440P:
    case AV_PIX_FMT_YUV444P:
    case AV_PIX_FMT_YUV411P:
      ycc_to_rgb(frame, *description, out);
      break;
    case AV_PIX_FMT_GBRP:
      planar_to_rgb(frame, out);
      break;
    case AV_PIX_FMT_GRAY8:
      grey_to_rgb(frame, 1, out);
      break;
    case AV_PIX_FMT_YA8:
      grey_to_rgb(frame, 2, out);
      break;
    case AV_PIX_FMT_YA16BE:
      grey_to_rgb(frame, 4, out);
      break;
    case AV_PIX_FMT_GRAY16BE:  // Pillow clips where it does not scale
      each_pixel(frame, out, [](const uint8_t* row, int x, uint8_t* rgb) {
        std::memset(rgb, row[2 * x] != 0 ? 255 : row[2 * x + 1], 3);
      });
      break;
    case AV_PIX_FMT_MONOBLACK:
      each_pixel(frame, out, [](const uint8_t* row, int x, uint8_t* rgb) {
        std::memset(rgb, (row[x / 8] >> (7 - x % 8) & 1) != 0 ? 255 : 0, 3);
      });
      break;
    case AV_PIX_FMT_RGB24:
      colours_to_rgb(frame, 3, 1, out);
      break;
    case AV_PIX_FMT_RGBA:
      colours_to_rgb(frame, 4, 1, out);
      break;
    case AV_PIX_FMT_RGB48BE:
      colours_to_rgb(frame, 6, 2, out);
      break;
    case AV_PIX_FMT_RGBA64BE:
      colours_to_rgb(frame, 8, 2, out);
      break;
    case AV_PIX_FMT_PAL8:
      palette_to_rgb(frame, out);
      break;
    default:
      fail("{}: pictures of the pixel format {} are not read; save it as 8-bit RGB", path.string(),
           description == nullptr ? "unknown" : description->name);
  }
  return image;
}

}  // namespace zoetrope::io
