#include <gmock/gmock.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <cstring>
#include <fstream>
#include <string>

#include "zoetrope/error.h"

#include "io/image.h"
#include "io/test_files.h"
#include "io/video.h"

namespace zoetrope::io {
namespace {

using testing::HasSubstr;

constexpr int kHeight = 7, kWidth = 11;

Tensor picture(int64_t channels) {
  Tensor image(DType::kU8, {kHeight, kWidth, channels});
  for (int64_t i = 0; i < image.view().size(); ++i) image.data<uint8_t>()[i] = static_cast<uint8_t>(i * 37 + i / 5);
  return image;
}

std::string taken(uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  WebPFree(data);
  return file;
}

std::string lossless(const Tensor& image) {
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGB(image.data<uint8_t>(), kWidth, kHeight, 3 * kWidth, &data);
  return taken(data, size);
}

std::string with_exif(const std::string& file, const std::string& exif) {
  const WebPData image{reinterpret_cast<const uint8_t*>(file.data()), file.size()};
  const WebPData chunk{reinterpret_cast<const uint8_t*>(exif.data()), exif.size()};
  WebPMux* mux = WebPMuxCreate(&image, 1);
  WebPMuxSetChunk(mux, "EXIF", &chunk, 1);
  WebPData whole;
  WebPMuxAssemble(mux, &whole);
  WebPMuxDelete(mux);
  std::string out(reinterpret_cast<const char*>(whole.bytes), whole.size);
  WebPDataClear(&whole);
  return out;
}

class ReadWebp : public testing::Test {
 protected:
  Tensor read(const std::string& bytes) {
    std::ofstream(file_, std::ios::binary) << bytes;
    return read_image(file_);
  }
  std::string error(const std::string& bytes) {
    try {
      read(bytes);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  }
  const TestFolder folder_;
  const std::filesystem::path file_ = folder_ / "a.webp";
};

TEST_F(ReadWebp, PixelsAreThoseThatWereWritten) {
  const Tensor image = picture(3);
  const Tensor got = read(lossless(image));
  ASSERT_EQ(got.shape(), image.shape());
  EXPECT_EQ(std::memcmp(got.data<uint8_t>(), image.data<uint8_t>(), image.view().bytes()), 0);
}

TEST_F(ReadWebp, AlphaIsDropped) {
  const Tensor image = picture(4);
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGBA(image.data<uint8_t>(), kWidth, kHeight, 4 * kWidth, &data);
  const Tensor got = read(taken(data, size));
  ASSERT_EQ(got.shape(), (Shape{kHeight, kWidth, 3}));
  for (int64_t i = 0; i < kHeight * kWidth; ++i) {
    if (image.data<uint8_t>()[4 * i + 3] == 0) continue;  // the encoder changes what nobody sees
    for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(got.data<uint8_t>()[3 * i + c], image.data<uint8_t>()[4 * i + c]);
  }
}

// Orientation 6: turned by a quarter, so that height and width change places.
TEST_F(ReadWebp, OrientationIsFollowedWithAndWithoutJpegsMarker) {
  const std::string tiff("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0", 26);
  for (const std::string& exif : {tiff, std::string("Exif\0\0", 6) + tiff})
    EXPECT_EQ(read(with_exif(lossless(picture(3)), exif)).shape(), (Shape{kWidth, kHeight, 3}));
}

TEST_F(ReadWebp, EveryCutIsAnError) {
  const std::string file = lossless(picture(3));
  for (size_t size = 12; size < file.size(); ++size) EXPECT_THAT(error(file.substr(0, size)), HasSubstr("broken WebP"));
  for (size_t size = 0; size < 12; ++size) EXPECT_THAT(error(file.substr(0, size)), HasSubstr("is not a picture"));
}

TEST_F(ReadWebp, AnimationsAreRefused) {
  VideoFormat format;
  format.width = kWidth;
  format.height = kHeight;
  const auto writer = FrameWriter::open(file_, format);
  const Tensor image = picture(3);
  writer->add_frame(image.data<uint8_t>());
  const Tensor other(DType::kU8, image.shape());
  writer->add_frame(other.data<uint8_t>());
  writer->finish();
  try {
    read_image(file_);
    FAIL() << "an animation was read";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("is an animation"));
  }
}

}  // namespace
}  // namespace zoetrope::io
