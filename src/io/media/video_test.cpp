#include "io/media/video.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/disk_limit.h"
#include "base/project_folders.h"
#include "base/unfinished_files.h"
#include "io/media/palette.h"
#include "io/media/test_clips.h"
#include "io/media/video_reader.h"
#include "io/weights/tensor_file.h"
#include "io/weights/test_files.h"
#include "trace/resident.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Each frame's mean colour within `tolerance` of what was written.
void expect_clip(const Clip& clip, int width, int height, int frames, double tolerance) {
  EXPECT_EQ(clip.frames.shape(), (Shape{frames, height, width, 3}));
  if (!(clip.frames.shape() == Shape{frames, height, width, 3})) return;
  const int64_t pixels = int64_t{width} * height;
  for (int i = 0; i < frames; ++i) {
    const auto read = mean_colour(clip.frames.data<uint8_t>() + i * pixels * 3, pixels);
    const auto written = mean_colour(frame_of(width, height, i).data(), pixels);
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(read[c], written[c], tolerance) << "frame " << i << " channel " << c;
  }
}

TEST(Pixels, TruncateAndRound) {
  EXPECT_EQ(to_u8_truncate(0.999f), 254);
  EXPECT_EQ(to_u8_round(0.999f), 255);
  EXPECT_EQ(to_u8_round(0.5f), 128);  // 127.5, half to even
  EXPECT_EQ(to_u8_truncate(0.5f), 127);
  EXPECT_EQ(to_u8_round(2.5f / 255), 2);  // exact half again
  for (const auto convert : {to_u8_truncate, to_u8_round}) {
    EXPECT_EQ(convert(1.0f), 255);
    EXPECT_EQ(convert(7.0f), 255);
    EXPECT_EQ(convert(-0.1f), 0);
    EXPECT_EQ(convert(std::numeric_limits<float>::quiet_NaN()), 0);
    EXPECT_EQ(convert(std::numeric_limits<float>::infinity()), 255);
  }
}

TEST(Pixels, ManyAtOnceAreTheSameBytes) {
  // Every level and every half between two, one step of float32 to each side, beyond both ends, and what is not a
  // number.
  std::vector<float> values;
  for (int half = -4; half <= 514; ++half) {
    const float value = static_cast<float>(half) / 510;
    values.insert(values.end(), {std::nextafter(value, -2.0f), value, std::nextafter(value, 2.0f)});
  }
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(),
                {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, -0.0f, 3e9f, -3e9f, 1e-40f});
  for (const size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{64}, values.size()}) {
    for (const auto& [rounding, one] :
         {std::pair{PixelRounding::kTruncate, &to_u8_truncate}, std::pair{PixelRounding::kRound, &to_u8_round}}) {
      std::vector<uint8_t> bytes(count + 1, 77), expected;
      const std::span<const float> part(values.data() + values.size() - count, count);
      to_u8(rounding, part, bytes.data());
      for (const float value : part) expected.push_back(one(value));
      expected.push_back(77);
      EXPECT_EQ(bytes, expected) << count;
    }
  }
}

TEST(Pixels, TruncationIsTheReferencesVideoPath) {
  const auto file = TensorFile::open(std::string(kGoldenFolder) + "/pipelines/wan21_t2v/t2v.safetensors");
  const TensorView frames = file->tensor("frames"), bytes = file->tensor("frames_u8");
  for (int64_t i = 0; i < frames.size(); ++i) {
    ASSERT_EQ(to_u8_truncate(frames.data<float>()[i]), bytes.data<uint8_t>()[i]) << i;
  }
}

TEST(Mp4, CarriesFramesRateAndMetadata) {
  const TestFolder folder;
  VideoFormat format = format_of(64, 48, 24);
  format.metadata = {{"prompt", "a cat; \"ü\"\nsecond line"}, {"seed", "42"}, {"model", "wan"}, {"version", "0.1"}};
  write_clip(folder / "x.mp4", format, 6);
  EXPECT_EQ(folder.entries(), 1u);
  const Clip clip = read_clip(folder / "x.mp4");
  // Limited range has 219 steps for 256, so a plane's mean is off by half a step of each of Y, U, V: under 2.
  expect_clip(clip, 64, 48, 6, 2.0);
  EXPECT_NEAR(clip.fps, 24, 1e-9);
  for (const auto& [key, value] : format.metadata) {
    ASSERT_EQ(clip.metadata.count(key), 1u) << key;
    EXPECT_EQ(clip.metadata.at(key), value);
  }
}

TEST(Mp4, IsVisuallyLossless) {
  const TestFolder folder;
  write_clip(folder / "x.mp4", format_of(96, 64), 4);
  const Clip clip = read_clip(folder / "x.mp4");
  ASSERT_EQ(clip.frames.shape(), (Shape{4, 64, 96, 3}));
  double squares = 0;
  for (int i = 0; i < 4; ++i) {
    const auto written = frame_of(96, 64, i);
    const uint8_t* read = clip.frames.data<uint8_t>() + static_cast<size_t>(i) * written.size();
    for (size_t k = 0; k < written.size(); ++k) squares += std::pow(static_cast<double>(read[k]) - written[k], 2);
  }
  const double psnr = 10 * std::log10(255.0 * 255.0 * static_cast<double>(clip.frames.size()) / squares);
  EXPECT_GT(psnr, 40);  // dB; above it differences are not seen. Wrong matrix or range in one direction gives under 35.
}

TEST(Mp4, OddAndTinySizesAreExtended) {
  const TestFolder folder;
  for (const auto& [width, height] : std::vector<std::pair<int, int>>{{33, 48}, {32, 17}, {35, 19}, {1, 1}}) {
    const auto path = folder / (std::to_string(width) + ".mp4");
    write_clip(path, format_of(width, height), 2);
    const Clip clip = read_clip(path);
    EXPECT_EQ(clip.frames.shape(), (Shape{2, height + height % 2, width + width % 2, 3}));
  }
}

TEST(Mp4, FractionalRateIsExact) {
  const TestFolder folder;
  write_clip(folder / "X.MP4", format_of(16, 16, 24000.0 / 1001), 3);
  EXPECT_NEAR(read_clip(folder / "X.MP4").fps, 24000.0 / 1001, 1e-9);
}

TEST(Gif, CarriesFramesAndRate) {
  const TestFolder folder;
  write_clip(folder / "x.gif", format_of(49, 31, 12.5), 5);
  EXPECT_EQ(folder.entries(), 1u);
  const Clip clip = read_clip(folder / "x.gif");
  // 256 colours over five ramps of 32 · 32: cells of 4 and a dither of ±4 that averages out; a mean is off by under 2.
  expect_clip(clip, 49, 31, 5, 2.0);
  EXPECT_NEAR(clip.fps, 12.5, 0.01);
}

TEST(Gif, FewColoursAreExact) {
  const TestFolder folder;
  std::vector<uint8_t> rgb;
  const uint8_t colours[4][3] = {{250, 1, 2}, {3, 240, 100}, {9, 9, 9}, {77, 66, 255}};
  for (int i = 0; i < 16 * 16; ++i) rgb.insert(rgb.end(), colours[i % 4], colours[i % 4] + 3);
  const auto writer = FrameWriter::open(folder / "x.gif", format_of(16, 16));
  for (int i = 0; i < 3; ++i) writer->add_frame(rgb.data());
  writer->finish();
  const Clip clip = read_clip(folder / "x.gif");
  ASSERT_EQ(clip.frames.shape(), (Shape{3, 16, 16, 3}));
  for (int64_t i = 0; i < clip.frames.size(); ++i) {
    ASSERT_EQ(clip.frames.data<uint8_t>()[i], rgb[static_cast<size_t>(i) % rgb.size()]) << i;
  }
}

TEST(Palette, UsesAllColoursOfARichPicture) {
  std::vector<uint8_t> rgb;
  std::mt19937 random(1);
  for (int i = 0; i < 30'000; ++i) rgb.push_back(static_cast<uint8_t>(random() >> 24));
  Palette::Histogram histogram;
  histogram.add(rgb.data(), rgb.size() / 3);
  Palette palette(histogram);
  ASSERT_EQ(palette.colours().size(), 256u);
  double error = 0;
  for (size_t i = 0; i < rgb.size(); i += 3) {
    const Rgb c = palette.colours()[palette.nearest(rgb[i], rgb[i + 1], rgb[i + 2])];
    error += std::pow(rgb[i] - c.r, 2) + std::pow(rgb[i + 1] - c.g, 2) + std::pow(rgb[i + 2] - c.b, 2);
  }
  // 256 equal cubes of a uniform cube have edge 256/∛256 = 40 and a mean square error of 3·40²/12 = 403.
  EXPECT_LT(error / static_cast<double>(rgb.size() / 3), 2 * 403);
}

TEST(Png, FolderPatternAndSingle) {
  const TestFolder folder;
  const VideoFormat format = format_of(17, 9);
  std::filesystem::create_directory(folder / "sub");
  write_clip(folder / "made", format, 3);
  write_clip(folder / "sub/", format, 2);
  write_clip(folder / "f-%03d_x.png", format, 2);
  write_clip(folder / "one.PNG", format, 1);
  write_clip(folder / "many.png", format, 2);
  write_clip(folder / "%d.png", format, 1);
  for (const char* name : {"made/0000.png", "made/0002.png", "sub/0001.png", "f-000_x.png", "f-001_x.png", "one.PNG",
                           "many-0000.png", "many-0001.png", "0.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
  EXPECT_EQ(folder.entries(), 8u);
  const Tensor image = read_image(folder / "made/0002.png");
  const auto expected = frame_of(17, 9, 2);
  ASSERT_EQ(image.shape(), (Shape{9, 17, 3}));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), image.data<uint8_t>()));  // lossless
}

TEST(Png, CarriesMetadataAndStaysReadable) {
  const TestFolder folder;
  VideoFormat format = format_of(8, 8);
  format.metadata = {{"prompt", "ein Käfer"}, {"seed", "7"}, {"", "ignored"}};
  write_clip(folder / "x.png", format, 1);
  // The reader checks every chunk's CRC.
  EXPECT_EQ(read_image(folder / "x.png").shape(), (Shape{8, 8, 3}));
  const std::string bytes = file_bytes(folder / "x.png");
  EXPECT_THAT(bytes, HasSubstr(std::string("iTXtprompt\0\0\0\0\0ein Käfer", 25)));
  EXPECT_THAT(bytes, HasSubstr(std::string("iTXtseed\0\0\0\0\0007", 14)));
}

TEST(FrameWriter, RoundsByTheFormatsRule) {
  const TestFolder folder;
  EXPECT_EQ(FrameWriter::open(folder / "x.png", format_of(1, 1))->rounding(), PixelRounding::kRound);
  EXPECT_EQ(FrameWriter::open(folder / "x.mp4", format_of(16, 16))->rounding(), PixelRounding::kTruncate);
  EXPECT_EQ(FrameWriter::open(folder / "x.gif", format_of(16, 16))->rounding(), PixelRounding::kTruncate);
}

TEST(FrameWriter, RefusesAtOnce) {
  const TestFolder folder;
  const auto refusal = [&](const std::string& name, const VideoFormat& format) {
    return error_of([&] { FrameWriter::open(folder / name, format); });
  };
  const VideoFormat good = format_of(16, 16);
  EXPECT_THAT(refusal("x.avi", good), AllOf(HasSubstr("'.avi'"), HasSubstr(".mp4, .mov, .webm, .webp, .gif, .png")));
  EXPECT_THAT(refusal("x.mp4", format_of(0, 16)), HasSubstr("0 x 16"));
  EXPECT_THAT(refusal("x.mp4", format_of(16, 100'000)), HasSubstr("100000"));
  EXPECT_THAT(refusal("x.mp4", format_of(16, 16, 0)), HasSubstr("0 frames per second"));
  EXPECT_THAT(refusal("x.mp4", format_of(16, 16, NAN)), HasSubstr("frames per second"));
  EXPECT_THAT(refusal("x.gif", format_of(16, 16, 60)), HasSubstr("at most 50"));
  for (const char* name : {"none/x.mp4", "none/x.gif", "none/x.png", "none/x%02d.png", "none/more/frames"}) {
    EXPECT_THAT(refusal(name, good), HasSubstr("none")) << name;
  }
  for (const char* name : {"%04s.png", "%d%d.png", "x%.png", "%10d.png", "%%d.png", "%999999999999d.png"}) {
    EXPECT_THAT(refusal(name, good), HasSubstr("%04d")) << name;
  }
  VideoFormat several = good;
  several.frames = 2;  // whose names are longer
  EXPECT_THAT(refusal(std::string(250, 'x') + ".png", several),
              HasSubstr("-0000.png: cannot be written: File name too long"));
  EXPECT_THAT(refusal(std::string(252, 'x') + ".mp4", good), HasSubstr(".mp4: cannot be written: File name too long"));
  EXPECT_THAT(error_of([&] { FrameWriter::open("", good); }), HasSubstr("empty"));
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(FrameWriter, AbandonedOrEmptyLeavesNothing) {
  const TestFolder folder;
  for (const char* name : {"x.mp4", "x.gif", "x.png", "x%d.png", "folder"}) {
    for (const int frames : {0, 1, 30}) {
      const auto writer = FrameWriter::open(folder / name, format_of(32, 32));
      for (int i = 0; i < frames; ++i) writer->add_frame(frame_of(32, 32, i % 6).data());
    }
    EXPECT_THAT(error_of([&] { FrameWriter::open(folder / name, format_of(32, 32))->finish(); }),
                HasSubstr("no frame"));
    EXPECT_EQ(folder.entries(), 0u) << name;
  }
}

TEST(FrameWriter, NoSpaceIsAnErrorAndLeavesNothing) {
  const TestFolder folder;
  std::vector<uint8_t> noise;
  for (uint32_t i = 0; i < 128 * 128 * 3; ++i) noise.push_back(static_cast<uint8_t>(i * i * 2654435761u >> 24));
  for (const char* name : {"x.mp4", "x.gif", "x.png", "folder"}) {
    const DiskLimit limit(3000);
    EXPECT_THAT(error_of([&] {
                  const auto writer = FrameWriter::open(folder / name, format_of(128, 128));
                  for (int i = 0; i < 3; ++i) writer->add_frame(noise.data());
                  writer->finish();
                }),
                HasSubstr("written"))
        << name;
    EXPECT_EQ(folder.entries(), 0u) << name;
  }
}

// As from a signal handler, in a process of its own: what went wrong is the interruption, not the file that is gone.
TEST(FrameWriterDeathTest, AnInterruptedWriterSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* name : {"x.mp4", "x.gif", "x.png"}) {
    const auto scenario = [name] {
      const TestFolder folder;
      const auto writer = FrameWriter::open(folder / name, {32, 32, 16, {}});
      const std::vector<uint8_t> frame(32 * 32 * 3);
      writer->add_frame(frame.data());
      remove_unfinished_files();
      const std::string error = error_of([&] {
        writer->add_frame(frame.data());
        writer->finish();
      });
      const bool good = error.find("interrupted") != std::string::npos && folder.entries() == 0;
      std::filesystem::remove_all(folder.path());
      if (!good) std::fprintf(stderr, "%s: %s\n", name, error.c_str());
      std::_Exit(good ? 0 : 1);
    };
    EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "") << name;
  }
}

// Each in a process of its own, whose peak it is. Within a third, as allocators and huge pages round.
TEST(FrameWriterDeathTest, EncodersTakeWhatIsExpected) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto& [file, codec] : std::vector<std::pair<std::string, std::string>>{
           {"x.mp4", "h264"}, {"x.mov", "h265"}, {"x.webm", "vp9"}, {"x.webp", ""}, {"x.png", ""}}) {
    const auto scenario = [&] {
      const TestFolder folder;
      VideoFormat format = format_of(640, 480);
      format.codec = codec;
      format.frames = 30;
      load_writer_of(folder / file);
      const int64_t before = trace::peak_resident_bytes();
      const auto writer = FrameWriter::open(folder / file, format);
      for (int i = 0; i < format.frames; ++i) writer->add_frame(frame_of(640, 480, i % 6).data());
      writer->finish();
      const auto measured = static_cast<double>(trace::peak_resident_bytes() - before);
      const auto expected = static_cast<double>(encoder_bytes(folder / file, format));
      std::fprintf(stderr, "%s: %.1f MB, expected %.1f MB\n", file.c_str(), measured / 1e6, expected / 1e6);
      std::filesystem::remove_all(folder.path());
      const double next_to_nothing = expected == 0 ? 5e6 : 0;
      std::_Exit(measured < expected * 4 / 3 + next_to_nothing && measured > expected * 2 / 3 ? 0 : 1);
    };
    EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "") << file;
  }
}

// Bytes that depend on memory that nobody set, on random numbers or on the number of processors differ between two
// processes.
TEST(FrameWriterDeathTest, EqualFramesGiveEqualBytes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kWidth = 64, kHeight = 192, kFrames = 13;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.mp4", ""}, {"b.mp4", "h265"}, {"c.mov", ""}, {"d.webm", ""}, {"e.webp", ""}, {"f.gif", ""}, {"g.png", ""}};
  const TestFolder own;
  ::setenv("ZOETROPE_TEST_FOLDER", own.path().c_str(), 0);  // a child, which starts anew, has its parent's
  const std::filesystem::path folder = std::getenv("ZOETROPE_TEST_FOLDER");
  for (const char* fill : {"1", "85", "170"}) {
    ::setenv("MALLOC_PERTURB_", fill, 1);  // what glibc fills new memory with
    const auto scenario = [&] {
      cpu_set_t processors;
      ::sched_getaffinity(0, sizeof processors, &processors);
      const std::string name = std::getenv("MALLOC_PERTURB_");
      for (int i = 0; name == "1" && CPU_COUNT(&processors) > 1; ++i) CPU_CLR(i, &processors);
      ::sched_setaffinity(0, sizeof processors, &processors);
      for (const auto& [file, codec] : files) {
        VideoFormat format = format_of(kWidth, kHeight);
        format.codec = codec;
        format.frames = kFrames;
        format.metadata = {{"prompt", "a cat"}};
        std::filesystem::create_directories(folder / name);
        const auto writer = FrameWriter::open(folder / name / file, format);
        std::minstd_rand random(1);
        for (int i = 0; i < kFrames; ++i) {
          std::vector<uint8_t> frame = frame_of(kWidth, kHeight, i % 6);
          for (uint8_t& value : frame) value = static_cast<uint8_t>(value + random() / 1024 % 16);
          writer->add_frame(frame.data());
        }
        writer->finish();
      }
      std::_Exit(0);
    };
    EXPECT_EXIT(scenario(), testing::ExitedWithCode(0), "");
    for (const auto& entry : std::filesystem::directory_iterator(folder / "1")) {
      const std::filesystem::path file = entry.path().filename();
      EXPECT_EQ(file_bytes(entry.path()) == file_bytes(folder / fill / file), true) << file << " with " << fill;
    }
  }
  ::unsetenv("MALLOC_PERTURB_");
  ::unsetenv("ZOETROPE_TEST_FOLDER");
}

}  // namespace
}  // namespace zoetrope::io
