#include <gmock/gmock.h>
#include <webp/encode.h>
#include <webp/mux.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "zoetrope/error.h"

#include "io/media/image.h"
#include "io/media/video.h"
#include "io/media/video_reader.h"
#include "io/weights/test_files.h"

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
    return error_of([&] { read(bytes); });
  }
  const TestFolder folder_;
  const std::filesystem::path file_ = folder_ / "a.webp";
};

TEST_F(ReadWebp, PixelsAreThoseThatWereWritten) {
  const Tensor image = picture(3);
  const Tensor got = read(lossless(image));
  ASSERT_EQ(got.shape(), image.shape());
  EXPECT_EQ(std::memcmp(got.data<uint8_t>(), image.data<uint8_t>(), image.view().bytes()), 0);
  EXPECT_FALSE(read_picture(file_).transparent);
}

TEST_F(ReadWebp, AlphaIsDropped) {
  const Tensor image = picture(4);
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGBA(image.data<uint8_t>(), kWidth, kHeight, 4 * kWidth, &data);
  const Tensor got = read(taken(data, size));
  ASSERT_EQ(got.shape(), (Shape{kHeight, kWidth, 3}));
  EXPECT_TRUE(read_picture(file_).transparent);
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
  EXPECT_THAT(error_of([&] { read_image(file_); }), HasSubstr("is an animation"));
}

Tensor grey(uint8_t value) {
  Tensor image = picture(3);
  std::memset(image.view().raw(), value, image.view().bytes());
  return image;
}

struct Shown {
  const Tensor& image;
  int milliseconds;
};

std::string animation(const std::vector<Shown>& pictures) {
  WebPAnimEncoder* encoder = WebPAnimEncoderNew(kWidth, kHeight, nullptr);
  WebPConfig config;
  WebPConfigInit(&config);
  config.lossless = 1;
  int time = 0;
  for (const auto& [image, milliseconds] : pictures) {
    WebPPicture picture;
    WebPPictureInit(&picture);
    picture.use_argb = 1;
    picture.width = kWidth;
    picture.height = kHeight;
    const auto import = image.extent(2) == 4 ? WebPPictureImportRGBA : WebPPictureImportRGB;
    import(&picture, image.data<uint8_t>(), static_cast<int>(image.extent(2)) * kWidth);
    WebPAnimEncoderAdd(encoder, &picture, time, &config);
    WebPPictureFree(&picture);
    time += milliseconds;
  }
  WebPAnimEncoderAdd(encoder, nullptr, time, nullptr);
  WebPData whole;
  WebPAnimEncoderAssemble(encoder, &whole);
  WebPAnimEncoderDelete(encoder);
  std::string out(reinterpret_cast<const char*>(whole.bytes), whole.size);
  WebPDataClear(&whole);
  return out;
}

class ReadAnimatedWebp : public ReadWebp {
 protected:
  ControlClip read(const std::string& bytes, int64_t frames) {
    std::ofstream(file_, std::ios::binary) << bytes;
    return read_control_clip(file_, frames, "control_video=");
  }
  std::string error(const std::string& bytes, int64_t frames) {
    return error_of([&] { read(bytes, frames); });
  }
};

TEST_F(ReadAnimatedWebp, FramesAreThoseThatWereWritten) {
  const std::array<Tensor, 3> images = {grey(10), picture(3), grey(200)};
  const ControlClip clip = read(animation({{images[0], 62}, {images[1], 63}, {images[2], 62}}), 3);
  EXPECT_EQ(clip.available, 3);
  EXPECT_EQ(clip.own, (ImageSize{kHeight, kWidth}));
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor& image = images[static_cast<size_t>(i)];
    EXPECT_EQ(std::memcmp(clip.frames.view().select(0, i).raw(), image.view().raw(), image.view().bytes()), 0) << i;
  }
  EXPECT_FALSE(is_picture(file_));
}

TEST_F(ReadAnimatedWebp, DroppedAlphaIsSaid) {
  const Tensor opaque = grey(40), other = picture(4);
  EXPECT_FALSE(read(animation({{opaque, 40}, {grey(90), 40}}), 2).transparent);
  EXPECT_TRUE(read(animation({{opaque, 40}, {other, 40}}), 2).transparent);
  EXPECT_FALSE(read(animation({{opaque, 40}, {other, 40}}), 1).transparent);
}

// The encoder makes one picture of the first three.
TEST_F(ReadAnimatedWebp, EqualFramesAreCounted) {
  const std::string file = animation({{grey(10), 62}, {grey(10), 63}, {grey(10), 62}, {grey(90), 63}, {grey(10), 62}});
  const ControlClip clip = read(file, 5);
  EXPECT_EQ(clip.available, 5);
  for (int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(*static_cast<uint8_t*>(clip.frames.view().select(0, i).raw()), i == 3 ? 90 : 10) << i;
  EXPECT_THAT(error(file, 6), HasSubstr("has 5 frames, but 6 are needed"));
}

// Times are whole milliseconds, frames are not; a run of equal ones is as long as it was.
TEST_F(ReadAnimatedWebp, LongRunsOfEqualFramesAreCounted) {
  const Tensor black = grey(0), white = grey(255);
  for (const int fps : {8, 12, 15, 16, 24, 25, 30, 60}) {
    const auto begin = [&](int frame) { return static_cast<int>(std::lround(1000.0 * frame / fps)); };
    for (const int equal : {2, 31, 49, 61, 200, 481}) {
      const int end = equal + 1;
      const std::string file = animation(
          {{black, begin(equal)}, {white, begin(end) - begin(equal)}, {black, begin(end + equal) - begin(end)}});
      EXPECT_EQ(read(file, 1).available, 2 * equal + 1) << fps << " fps";
    }
  }
}

// A GIF rounds times to hundredths of a second: at 30 fps pictures are shown for 30, 40 and 30 ms.
TEST_F(ReadAnimatedWebp, FramesOfAGifAreCountedOnce) {
  const Tensor black = grey(0), white = grey(255);
  constexpr int kPictures = 12;
  for (int fps = 8; fps <= 50; ++fps) {
    const auto begin = [&](int picture) { return 10 * static_cast<int>(std::lround(100.0 * picture / fps)); };
    std::vector<Shown> pictures;
    for (int i = 0; i < kPictures; ++i) pictures.push_back({i % 2 == 0 ? black : white, begin(i + 1) - begin(i)});
    EXPECT_EQ(read(animation(pictures), 1).available, kPictures) << fps << " fps";
  }
}

TEST_F(ReadAnimatedWebp, HeldFramesOfAnyRateAreCounted) {
  const Tensor black = grey(0), white = grey(255);
  for (int fps = 8; fps <= 100; ++fps) {
    const auto begin = [&](int frame) { return static_cast<int>(std::lround(1000.0 * frame / fps)); };
    std::vector<Shown> pictures;
    for (int frame = 0, held = 1; held <= 8; frame += held++)
      pictures.push_back({held % 2 == 0 ? black : white, begin(frame + held) - begin(frame)});
    EXPECT_EQ(read(animation(pictures), 1).available, 36) << fps << " fps";
  }
}

TEST_F(ReadAnimatedWebp, EveryPictureMayBeShownForSeveralFrames) {
  EXPECT_EQ(read(animation({{grey(10), 125}, {grey(90), 188}, {grey(10), 125}}), 1).available, 7);
}

TEST_F(ReadAnimatedWebp, TimesThatAreNoMultiplesAreFrames) {
  EXPECT_EQ(read(animation({{grey(10), 70}, {grey(90), 97}, {grey(10), 111}}), 1).available, 3);
}

TEST_F(ReadAnimatedWebp, TimesOfNoLengthAreFrames) {
  EXPECT_EQ(read(animation({{grey(10), 1}, {grey(90), 1000}, {grey(10), 1}}), 1).available, 3);
}

TEST_F(ReadAnimatedWebp, EveryCutIsAnError) {
  const std::string file = animation({{grey(10), 62}, {picture(3), 63}});
  for (size_t size = 0; size < file.size(); ++size) EXPECT_NE(error(file.substr(0, size), 2), "no error") << size;
  std::string damaged = file;
  for (size_t i = file.size() / 2; i < file.size(); ++i) damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
  EXPECT_THAT(error(damaged, 2), HasSubstr("a.webp"));
}

}  // namespace
}  // namespace zoetrope::io
