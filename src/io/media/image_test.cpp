#include "io/media/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>
// libjpeg asks for what it uses to be there.
#include <jpeglib.h>
#include <png.h>

#include "base/error.h"
#include "base/hash.h"
#include "io/media/image_test_data.h"
#include "io/media/video.h"
#include "io/media/video_reader.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string_view bytes_of(const TensorView& image) { return {image.data<char>(), image.bytes()}; }

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// Tiles of ramps and of noise, so that edges, slopes and overshoot all occur.
Tensor picture(int64_t height, int64_t width) {
  Tensor image(DType::kU8, {height, width, 3});
  uint64_t index = 0;
  uint8_t* out = image.data<uint8_t>();
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        uint64_t z = ++index * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z ^= z >> 27;
        const bool ramp = (x / 5 + y / 7) % 2 == 0;
        *out++ = static_cast<uint8_t>(ramp ? static_cast<uint64_t>(x * 9 + y * 5 + c * 60) : z >> 56);
      }
    }
  }
  return image;
}

// ---- resize ----

TEST(Resize, EqualsPillowInNumbers) {
  // Image.fromarray(picture(5, 6)).resize((4, 3), …) of Pillow 13.0.0.
  const std::vector<uint8_t> lanczos{4,  64, 124, 18,  78,  134, 28, 88, 161, 78, 133, 69,  12, 72,  132, 27, 87,  146,
                                     33, 96, 158, 115, 144, 189, 20, 80, 140, 35, 93,  153, 46, 109, 168, 75, 107, 174};
  const std::vector<uint8_t> bicubic{5,  65, 125, 17,  77,  137, 29, 90, 156, 80, 132, 75,  13, 73,  133, 25, 85,  145,
                                     36, 97, 158, 105, 147, 186, 21, 81, 141, 33, 93,  153, 47, 109, 168, 78, 105, 170};
  const Tensor image = picture(5, 6);
  for (const auto& [filter, expected] :
       {std::pair{ResizeFilter::kLanczos, lanczos}, std::pair{ResizeFilter::kBicubic, bicubic}}) {
    const Tensor made = resize(image, {3, 4}, filter);
    ASSERT_EQ(made.shape(), (Shape{3, 4, 3}));
    EXPECT_EQ(std::vector<uint8_t>(made.data<uint8_t>(), made.data<uint8_t>() + made.size()), expected);
  }
}

struct ResizeCase {
  ImageSize from, to;
  uint64_t bicubic, lanczos;  // fnv1a64 of what Pillow 13.0.0 makes of picture(from)
};

constexpr ResizeCase kResizeCases[] = {
    {{17, 23}, {8, 8}, 0x053b20e9dfd4aa0b, 0x4d8ad98778a03e70},
    {{17, 23}, {34, 46}, 0x76800632f1028d57, 0x56ea49f5f65e1861},
    {{17, 23}, {16, 24}, 0x2af620b433c20444, 0xdd444889027e40fb},
    {{64, 48}, {16, 24}, 0xa9ebdbc3e1eddd1b, 0x9577c0f62fff7338},
    {{64, 48}, {33, 48}, 0xa8e76a8f63d81a9e, 0x7938ef0541dd689b},
    {{64, 48}, {64, 31}, 0x53c5caa259cf5181, 0x5954b10a438c8892},
    {{100, 131}, {40, 99}, 0x20f86a5e2a16fb5c, 0x5768ed502ba45842},
    {{100, 60}, {41, 31}, 0x95e75d1c82af8173, 0x88fa8d2fdb9912b1},  // rows first: 59 > 2·29
    {{100, 60}, {42, 31}, 0x05286e83b2e0d1e2, 0x17d326d73d71a656},  // columns first: 58 = 2·29
    {{37, 1}, {5, 9}, 0x9eb7668d83902de6, 0x96b7600338cd5768},
    {{2, 90}, {70, 7}, 0xa70fa0a43c769520, 0xa598ddd310f74030},
    {{270, 480}, {32, 56}, 0x29feb83bab4c04b0, 0x967da210719a40ab},
};

TEST(Resize, EqualsPillowToTheByte) {
  ASSERT_EQ(fnv1a64(bytes_of(picture(5, 6))), 1334639662332920003u);
  for (const ResizeCase& c : kResizeCases) {
    const Tensor image = picture(c.from.height, c.from.width);
    const std::string label = fmt::format("{} x {} to {} x {}", c.from.width, c.from.height, c.to.width, c.to.height);
    EXPECT_EQ(fnv1a64(bytes_of(resize(image, c.to, ResizeFilter::kBicubic))), c.bicubic) << label;
    EXPECT_EQ(fnv1a64(bytes_of(resize(image, c.to, ResizeFilter::kLanczos))), c.lanczos) << label;
  }
}

TEST(Resize, RowsMayLieApartAndTheSameSizeIsACopy) {
  const Tensor wide = picture(20, 30);
  const TensorView part = wide.view().slice(0, 3, 17).slice(1, 4, 25);
  const Tensor copy = resize(part, {14, 21}, ResizeFilter::kLanczos);
  for (int64_t y = 0; y < 14; ++y) {
    EXPECT_EQ(bytes_of(copy.view().select(0, y)), bytes_of(part.select(0, y))) << y;
  }
  for (const ImageSize size : {ImageSize{9, 40}, ImageSize{33, 21}, ImageSize{14, 5}}) {
    EXPECT_EQ(bytes_of(resize(part, size, ResizeFilter::kBicubic)),
              bytes_of(resize(copy, size, ResizeFilter::kBicubic)));
  }
  EXPECT_THAT(error_of([&] { resize(wide, {0, 5}, ResizeFilter::kLanczos); }), HasSubstr("5 x 0"));
}

// ---- PNG ----

// A PNG of one row that holds these bytes.
void write_png(const std::filesystem::path& path, int colours, int bits, png_uint_32 width, std::vector<uint8_t> row) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  png_init_io(png, file);
  png_set_IHDR(png, info, width, 1, bits, colours, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
  if (colours == PNG_COLOR_TYPE_PALETTE) {
    const png_color palette[] = {{16, 32, 48}, {255, 128, 1}, {254, 253, 252}};
    const png_byte alpha[] = {255, 128, 0};
    png_set_PLTE(png, info, palette, 3);
    png_set_tRNS(png, info, alpha, 3, nullptr);
  }
  png_write_info(png, info);
  png_write_row(png, row.data());
  png_write_end(png, info);
  std::fclose(file);
  png_destroy_write_struct(&png, &info);
}

TEST(ReadImage, EveryKindOfPngBecomesRgb) {
  const TestFolder folder;
  const std::filesystem::path path = folder / "x.png";
  struct Case {
    int colours, bits;
    std::vector<uint8_t> row, rgb;
    bool transparent = false, clipped = false;
  };
  const std::vector<Case> cases{
      {PNG_COLOR_TYPE_GRAY, 8, {0, 7, 255}, {0, 0, 0, 7, 7, 7, 255, 255, 255}},
      {PNG_COLOR_TYPE_GRAY_ALPHA, 8, {9, 0, 200, 77}, {9, 9, 9, 200, 200, 200}, true},
      {PNG_COLOR_TYPE_GRAY_ALPHA, 16, {9, 250, 0, 1, 200, 3, 9, 9}, {9, 9, 9, 200, 200, 200}, true},
      {PNG_COLOR_TYPE_GRAY,
       16,
       {0, 255, 1, 0, 0, 3, 200, 1},
       {255, 255, 255, 255, 255, 255, 3, 3, 3, 255, 255, 255},
       false,
       true},
      {PNG_COLOR_TYPE_GRAY, 16, {0, 200, 255, 255}, {200, 200, 200, 255, 255, 255}},
      {PNG_COLOR_TYPE_GRAY, 1, {0xa0}, {255, 255, 255, 0, 0, 0, 255, 255, 255}},
      {PNG_COLOR_TYPE_RGB, 8, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}},
      {PNG_COLOR_TYPE_RGB_ALPHA, 8, {1, 2, 3, 0, 4, 5, 6, 255}, {1, 2, 3, 4, 5, 6}, true},
      {PNG_COLOR_TYPE_RGB_ALPHA, 8, {1, 2, 3, 255, 4, 5, 6, 255}, {1, 2, 3, 4, 5, 6}},
      {PNG_COLOR_TYPE_RGB, 16, {1, 200, 2, 201, 3, 202}, {1, 2, 3}},
      {PNG_COLOR_TYPE_RGB_ALPHA, 16, {1, 200, 2, 201, 3, 202, 0, 0}, {1, 2, 3}, true},
      {PNG_COLOR_TYPE_PALETTE, 8, {2, 0, 1}, {254, 253, 252, 16, 32, 48, 255, 128, 1}, true},
  };
  for (const Case& c : cases) {
    const auto width = static_cast<int64_t>(c.rgb.size() / 3);
    write_png(path, c.colours, c.bits, static_cast<png_uint_32>(width), c.row);
    const auto& [image, transparent, clipped] = read_picture(path);
    EXPECT_EQ(transparent, c.transparent) << c.colours << ", " << c.bits;
    EXPECT_EQ(clipped, c.clipped) << c.colours << ", " << c.bits;
    ASSERT_EQ(image.shape(), (Shape{1, width, 3})) << c.colours << ", " << c.bits;
    EXPECT_EQ(std::vector<uint8_t>(image.data<uint8_t>(), image.data<uint8_t>() + image.size()), c.rgb)
        << c.colours << ", " << c.bits;
  }
}

// ---- JPEG ----

TEST(ReadImage, JpegsAreThoseOfLibjpeg) {
  const TestFolder folder;
  for (const JpegExample& example : kJpegExamples) {
    const Tensor image = read_image(folder.write("x.jpg", from_hex(example.file)));
    ASSERT_EQ(image.shape(), (Shape{example.height, example.width, 3})) << example.chroma;
    EXPECT_EQ(bytes_of(image), from_hex(example.pixels)) << example.chroma;
  }
}

// values [height, width, channels] U8 as a JPEG file.
std::string jpeg_of(const Tensor& values, J_COLOR_SPACE colours, bool progressive) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_height = static_cast<JDIMENSION>(values.extent(0));
  jpeg.image_width = static_cast<JDIMENSION>(values.extent(1));
  jpeg.input_components = static_cast<int>(values.extent(2));
  jpeg.in_color_space = colours;
  jpeg_set_defaults(&jpeg);
  if (progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<JSAMPLE*>(values.view().select(0, jpeg.next_scanline).data<uint8_t>());
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  const std::string file(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&jpeg);
  std::free(bytes);
  return file;
}

// The same coefficients, in another order.
TEST(ReadImage, ProgressiveJpegsAreAsOthers) {
  const TestFolder folder;
  const Tensor plain = read_image(folder.write("x.jpg", jpeg_of(picture(37, 50), JCS_RGB, false)));
  const std::string progressive = jpeg_of(picture(37, 50), JCS_RGB, true);
  EXPECT_EQ(bytes_of(read_image(folder.write("y.jpg", progressive))), bytes_of(plain));
  for (size_t length = progressive.size() - 3; length > 100; length -= 97) {
    EXPECT_THAT(error_of([&] { read_image(folder.write("z.jpg", progressive.substr(0, length))); }),
                HasSubstr("broken JPEG"))
        << length;
  }
}

TEST(ReadImage, JpegsOfFourComponentsAreRefused) {
  const TestFolder folder;
  const std::string cmyk = jpeg_of(Tensor(DType::kU8, {8, 8, 4}), JCS_CMYK, false);
  EXPECT_THAT(error_of([&] { read_image(folder.write("x.jpg", cmyk)); }), HasSubstr("4 components (CMYK)"));
}

TEST(ReadImage, JpegsAreOfFullRangeWhateverTheySay) {
  const TestFolder folder;
  const std::string words = "CS=ITU601", comment = std::string("\xff\xfe\0\x0c", 4) + words + '\0';
  for (const JpegExample& example : kJpegExamples) {
    const std::string file = from_hex(example.file);
    const Tensor plain = read_image(folder.write("x.jpg", file));
    EXPECT_EQ(bytes_of(read_image(folder.write("y.jpg", std::string(file).insert(2, comment)))), bytes_of(plain))
        << example.chroma;
  }
}

// Where EXIF's orientation says a pixel of the upright picture lies in the stored one of h rows and w columns.
using Place = std::function<std::array<int64_t, 2>(int64_t y, int64_t x, int64_t h, int64_t w)>;
const std::vector<Place> kPlaces{
    [](auto y, auto x, auto, auto) {
      return std::array{y, x};
    },
    [](auto y, auto x, auto, auto w) {
      return std::array{y, w - 1 - x};
    },
    [](auto y, auto x, auto h, auto w) {
      return std::array{h - 1 - y, w - 1 - x};
    },
    [](auto y, auto x, auto h, auto) {
      return std::array{h - 1 - y, x};
    },
    [](auto y, auto x, auto, auto) {
      return std::array{x, y};
    },
    [](auto y, auto x, auto h, auto) {
      return std::array{h - 1 - x, y};
    },
    [](auto y, auto x, auto h, auto w) {
      return std::array{h - 1 - x, w - 1 - y};
    },
    [](auto y, auto x, auto, auto w) {
      return std::array{x, w - 1 - y};
    },
};

void expect_turned(const Tensor& image, const Tensor& stored, size_t orientation) {
  const int64_t h = stored.extent(0), w = stored.extent(1);
  ASSERT_EQ(image.shape(), orientation >= 5 ? (Shape{w, h, 3}) : (Shape{h, w, 3})) << orientation;
  for (int64_t y = 0; y < image.extent(0); ++y) {
    for (int64_t x = 0; x < image.extent(1); ++x) {
      const auto [row, column] = kPlaces[orientation - 1](y, x, h, w);
      EXPECT_EQ(bytes_of(image.view().select(0, y).select(0, x)),
                bytes_of(stored.view().select(0, row).select(0, column)))
          << orientation << ": " << y << ", " << x;
    }
  }
}

// TIFF's header and one directory with one entry: the orientation, a short.
std::string exif_of(size_t orientation, bool little) {
  std::string exif = little ? std::string("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", 18)
                            : std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 19);
  exif += static_cast<char>(orientation);
  exif.append(little ? 7 : 6, '\0');
  return exif;
}

std::string png_chunk(const std::string& letters, const std::string& data) {
  const auto big_endian = [](uint32_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(value >> shift));
    return text;
  };
  uint32_t crc = ~0u;  // CRC-32 as PNG has it, bit by bit
  for (const char c : letters + data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return big_endian(static_cast<uint32_t>(data.size())) + letters + data + big_endian(~crc);
}

TEST(ReadImage, ExifOrientationIsFollowed) {
  const TestFolder folder;
  const std::string jpeg = from_hex(kJpegExamples[0].file);
  const Tensor stored_jpeg = read_image(folder.write("x.jpg", jpeg));
  const auto writer = FrameWriter::open(folder / "x.png", {5, 3, 16, {}});
  const Tensor stored_png = picture(3, 5);
  writer->add_frame(stored_png.data<uint8_t>());
  writer->finish();
  const std::string png = file_bytes(folder / "x.png");
  constexpr size_t kAfterHeader = 33, kAfterStart = 2;
  for (size_t orientation = 1; orientation <= 8; ++orientation) {
    const std::string exif = std::string("Exif\0\0", 6) + exif_of(orientation, true);
    const std::string segment = std::string("\xff\xe1\0", 3) + static_cast<char>(exif.size() + 2) + exif;
    std::string turned = jpeg;
    expect_turned(read_image(folder.write("y.jpg", turned.insert(kAfterStart, segment))), stored_jpeg, orientation);
    turned = png;
    turned.insert(kAfterHeader, png_chunk("eXIf", exif_of(orientation, false)));
    const Tensor upright = read_image(folder.write("y.png", turned));
    expect_turned(upright, stored_png, orientation);
    // Also where a video is asked for.
    const ControlClip clip = read_control_clip(folder / "y.png", 1, "video=");
    EXPECT_EQ(bytes_of(clip.frames), bytes_of(upright)) << orientation;
    EXPECT_EQ(clip.own, (ImageSize{upright.extent(0), upright.extent(1)}));
  }
  // Of four bytes; and in a text chunk, as ImageMagick 6 writes it.
  for (const bool little : {true, false}) {
    std::string of_long = exif_of(6, little), turned = png;
    of_long.replace(12, 10, little ? std::string("\4\0\1\0\0\0\6\0\0\0", 10) : std::string("\0\4\0\0\0\1\0\0\0\6", 10));
    turned.insert(kAfterHeader, png_chunk("eXIf", of_long));
    expect_turned(read_image(folder.write("y.png", turned)), stored_png, 6);
  }
  const std::string key = std::string("Raw profile type exif\0", 22);
  const std::string hex =
      "457869660000"
      "49492a00080000000100120103000100\n0000080000000000"
      "0000\n";
  for (const auto& [text, orientation] : {std::pair(key + "\nexif\n      32\n" + hex, 8),
                                          std::pair(key + "\nexif\n      32\nno digits", 1), std::pair(key, 1)}) {
    std::string turned = png;
    turned.insert(kAfterHeader, png_chunk("tEXt", text));
    expect_turned(read_image(folder.write("y.png", turned)), stored_png, static_cast<size_t>(orientation));
  }
  std::string odd = png;
  odd.insert(kAfterHeader, png_chunk("eXIf", exif_of(77, false)));
  expect_turned(read_image(folder.write("y.png", odd)), stored_png, 1);
}

// ---- what is refused ----

std::string png_start(uint32_t width, uint32_t height) {
  std::string header;
  for (const uint32_t side : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) header.push_back(static_cast<char>(side >> shift));
  }
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header + std::string("\x08\x02\0\0\0", 5));
}

TEST(ReadImage, RefusesInOneSentence) {
  const TestFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    return error_of([&] { read_image(folder.write(name, bytes)); });
  };
  EXPECT_THAT(error_of([&] { read_image(folder / "none.png"); }), HasSubstr("none.png: no such file"));
  EXPECT_THAT(error_of([&] { read_image(folder.path()); }), HasSubstr("regular file"));
  EXPECT_THAT(refusal("a.png", ""), AllOf(HasSubstr("a.png: is not a picture"), HasSubstr("PNG, JPEG and WebP")));
  EXPECT_THAT(refusal("a.jpg", "text"), HasSubstr("a.jpg: is not a picture"));
  EXPECT_THAT(refusal("a.gif", "GIF89a\1\0\1\0"), HasSubstr("not a picture"));
  EXPECT_THAT(refusal("b.png", png_start(0, 7)), HasSubstr("0 x 7 pixels"));
  EXPECT_THAT(refusal("b.png", png_start(7, 0)), HasSubstr("7 x 0 pixels"));
  EXPECT_THAT(refusal("c.png", png_start(10'001, 10'000)), AllOf(HasSubstr("10001 x 10000"), HasSubstr("100000000")));
  EXPECT_THAT(refusal("c.png", png_start(0xffffffff, 0xffffffff)), HasSubstr("4294967295"));
  // 10000 x 10000 may be read: what is missing are the pixels.
  EXPECT_THAT(refusal("d.png", png_start(10'000, 10'000)), HasSubstr("broken PNG"));
  const std::string png = png_start(7, 7);
  for (size_t length = 0; length < png.size(); ++length) {
    EXPECT_THAT(refusal("d.png", png.substr(0, length)), HasSubstr("d.png")) << length;
  }

  const std::string jpeg = from_hex(kJpegExamples[0].file);
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  const auto with = [&](size_t offset, const std::string& bytes) {
    return std::string(jpeg).replace(frame + offset, bytes.size(), bytes);
  };
  EXPECT_THAT(refusal("e.jpg", with(5, std::string(2, '\0'))), HasSubstr("Empty JPEG image"));
  EXPECT_THAT(refusal("e.jpg", with(5, "\xff\xff\xff\xff")), HasSubstr("dimension"));
  EXPECT_THAT(refusal("e.jpg", with(5, "\x7f\xff\x7f\xff")), HasSubstr("32767 x 32767"));
  EXPECT_THAT(refusal("f.jpg", jpeg.substr(0, frame)), HasSubstr("Premature end"));
  for (size_t length = 0; length < jpeg.size(); length += 7) {
    EXPECT_THAT(refusal("g.jpg", jpeg.substr(0, length)), HasSubstr("g.jpg")) << length;
  }
}

TEST(ReadImage, BrokenPngIsAnError) {
  const TestFolder folder;
  const auto writer = FrameWriter::open(folder / "x.png", {64, 64, 16, {}});
  writer->add_frame(picture(64, 64).data<uint8_t>());
  writer->finish();
  std::string bytes = file_bytes(folder / "x.png");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  EXPECT_THAT(error_of([&] { read_image(folder.write("z.png", bytes)); }), HasSubstr("z.png"));
}

// Rows that are not there are not made up: neither where the compressed data ends early, nor where what holds it does,
// nor colours of a palette that is absent.
TEST(ReadImage, WhatIsMissingInAPngIsAnError) {
  const TestFolder folder;
  const std::string ihdr("IHDR\0\0\0\x08\0\0\0\x08\x08", 13);
  const auto rows = [](size_t count) {  // stored, not compressed: zlib's header, one block, Adler-32
    const size_t bytes = 9 * count;
    std::string data("\x78\x01\x01", 3);
    for (const size_t n : {bytes, ~bytes}) data += {static_cast<char>(n), static_cast<char>(n >> 8)};
    const uint32_t adler = static_cast<uint32_t>((bytes % 65521) << 16 | 1);
    data += std::string(bytes, '\0');
    for (int shift = 24; shift >= 0; shift -= 8) data.push_back(static_cast<char>(adler >> shift));
    return data;
  };
  const auto png = [&](char colour, const std::string& data, const std::string& end = png_chunk("IEND", "")) {
    return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", ihdr.substr(4) + colour + std::string(3, '\0')) +
           png_chunk("IDAT", data) + end;
  };
  const auto refusal = [&](const std::string& bytes) {
    return error_of([&] { read_image(folder.write("x.png", bytes)); });
  };
  EXPECT_EQ(refusal(png(0, rows(8))), "no error");
  for (size_t count = 0; count < 8; ++count)
    EXPECT_THAT(refusal(png(0, rows(count))), HasSubstr("broken PNG")) << count;
  const std::string data = rows(8);
  for (size_t length = 0; length < data.size() - 4; ++length) {
    EXPECT_THAT(refusal(png(0, data.substr(0, length))), HasSubstr("broken PNG")) << length;
  }
  EXPECT_THAT(refusal(png(0, data, "")), HasSubstr("broken PNG"));
  EXPECT_THAT(refusal(png(3, data)), HasSubstr("PLTE"));
  EXPECT_EQ(refusal(png(0, rows(9))), "no error");  // more than is needed loses nothing
}

// ---- control clips ----

Tensor shifted(int64_t frame) {
  Tensor image = picture(24, 32);
  for (int64_t i = 0; i < image.size(); ++i) image.data<uint8_t>()[i] += static_cast<uint8_t>(frame);
  return image;
}

void write_frames(const std::filesystem::path& path, int frames) {
  const auto writer = FrameWriter::open(path, {32, 24, 16, {}});
  for (int i = 0; i < frames; ++i) writer->add_frame(shifted(i).data<uint8_t>());
  writer->finish();
}

TEST(ControlClip, FolderInTheOrderOfItsNumbers) {
  const TestFolder folder;
  const std::filesystem::path clip = folder / "clip";
  std::filesystem::create_directory(clip);
  const char* names[] = {"frame1.png", "frame2.PNG", "frame003.png", "frame10.png", "frame11.png"};
  for (int i = 0; i < 5; ++i) {
    write_frames(folder / "one.png", 1);
    const auto writer = FrameWriter::open(folder / "one.png", {32, 24, 16, {}});
    writer->add_frame(shifted(i).data<uint8_t>());
    writer->finish();
    std::filesystem::rename(folder / "one.png", clip / names[i]);
  }
  folder.write("clip/notes.txt", "not a frame");
  folder.write("clip/._frame1.png", "what macOS stores of a file elsewhere");
  const ControlClip read = read_control_clip(clip, 4, "video=");
  EXPECT_EQ(read.available, 5);
  EXPECT_EQ(read.own, (ImageSize{24, 32}));
  ASSERT_EQ(read.frames.shape(), (Shape{4, 24, 32, 3}));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(bytes_of(read.frames.view().select(0, i)), bytes_of(shifted(i))) << i;

  const ControlClip small = read_control_clip(clip, 5, "video=", [](ImageSize own) {
    EXPECT_EQ(own, (ImageSize{24, 32}));
    return ImageSize{16, 16};
  });
  EXPECT_EQ(small.own, (ImageSize{24, 32}));
  for (int64_t i = 0; i < 5; ++i) {
    const Tensor expected = resize(shifted(i), {16, 16}, ResizeFilter::kLanczos);
    EXPECT_EQ(bytes_of(small.frames.view().select(0, i)), bytes_of(expected)) << i;
  }
}

TEST(ControlClip, SaysWhereTheNumbersOfAFolderJump) {
  const TestFolder folder;
  const auto jump = [&](const std::vector<std::string>& names) {
    const std::filesystem::path clip = folder / "clip";
    std::filesystem::remove_all(clip);
    write_frames(clip.string() + ".png", 1);
    std::filesystem::create_directory(clip);
    for (const std::string& name : names) std::filesystem::copy_file(clip.string() + ".png", clip / name);
    return read_control_clip(clip, static_cast<int64_t>(names.size()), "video=").jump;
  };
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"a.png"},
           {"a1.png", "a5.png"},
           {"a1_x.png", "a2_x.png", "a3_x.png"},
           {"f08.png", "f10.png", "f12.png"},
           {"0000.png", "0041.png", "0083.png", "0125.png"},
           {"cat.png", "cow.png", "dog.png"},
           {"a1.png", "a2.png", "b1.png"},
           {"a99999999999999999998.png", "a99999999999999999999.png", "a99999999999999999999999.png"}}) {
    EXPECT_EQ(jump(names), "") << names.back();
  }
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"f1.png", "f2.png", "f4.png"}, {"f1.png", "f2.png", "f4.png", "f5.png", "f7.png"}}) {
    EXPECT_EQ(jump(names), "f2.png is followed by f4.png; is one missing?") << names.back();
  }
  EXPECT_EQ(jump({"f08.png", "f10.png", "f14.png", "f16.png"}), "f10.png is followed by f14.png; is one missing?");
  EXPECT_EQ(jump({"1.png", "2.png", "02.png", "3.png"}), "02.png is followed by 2.png; is one too many?");
}

TEST(ControlClip, VideoFile) {
  const TestFolder folder;
  write_frames(folder / "x.mp4", 9);
  const ControlClip clip = read_control_clip(folder / "x.mp4", 5, "video=");
  EXPECT_EQ(clip.available, 9);
  ASSERT_EQ(clip.frames.shape(), (Shape{5, 24, 32, 3}));
  const Clip all = read_clip(folder / "x.mp4");
  EXPECT_EQ(bytes_of(clip.frames), bytes_of(all.frames.view().slice(0, 0, 5)));
  EXPECT_EQ(read_control_clip(folder / "x.mp4", 9, "video=").available, 9);
}

TEST(ControlClip, Refusals) {
  const TestFolder folder;
  write_frames(folder / "x.mp4", 9);
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "x.mp4", 13, "video="); }),
              AllOf(HasSubstr("video="), HasSubstr("x.mp4"), HasSubstr("9 frames"), HasSubstr("13")));
  write_frames(folder / "frames", 3);
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "frames", 5, "mask="); }),
              AllOf(HasSubstr("mask="), HasSubstr("3 frames"), HasSubstr("5 are needed")));
  const auto writer = FrameWriter::open(folder / "frames/0001.png", {8, 6, 16, {}});
  writer->add_frame(picture(6, 8).data<uint8_t>());
  writer->finish();
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "frames", 3, "video="); }),
              AllOf(HasSubstr("0001.png"), HasSubstr("8 x 6"), HasSubstr("32 x 24")));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "empty", 1, "video="); }), HasSubstr("no .png"));
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "none.mp4", 1, "video="); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([&] { read_control_clip(folder.write("t.mp4", "text"), 1, "video="); }), HasSubstr("t.mp4"));
}

}  // namespace
}  // namespace zoetrope::io
