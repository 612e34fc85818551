#include "io/video.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/disk_limit.h"
#include "base/project_folders.h"
#include "base/unfinished_files.h"
#include "io/palette.h"
#include "io/tensor_file.h"
#include "io/test_files.h"
#include "io/video_reader.h"
#include "video_plugin/ffmpeg.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using video_plugin::check;
using video_plugin::FFmpegPtr;

VideoFormat format_of(int width, int height, double fps = 16) { return {width, height, fps, {}}; }

// Frame `index` of a clip whose colour changes: a smooth ramp over a flat tone.
std::vector<uint8_t> frame_of(int width, int height, int index) {
  std::vector<uint8_t> rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(60 + 20 * index + 32 * x / width));
      rgb.push_back(static_cast<uint8_t>(200 - 20 * index));
      rgb.push_back(static_cast<uint8_t>(90 + 32 * y / height));
    }
  }
  return rgb;
}

std::array<double, 3> mean_colour(const uint8_t* rgb, int64_t pixels) {
  std::array<double, 3> mean{};
  for (int64_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) mean[c] += static_cast<double>(rgb[3 * i + static_cast<int64_t>(c)]);
  }
  for (double& value : mean) value /= static_cast<double>(pixels);
  return mean;
}

void write_clip(const std::filesystem::path& path, const VideoFormat& format, int frames) {
  const auto writer = FrameWriter::open(path, format);
  for (int i = 0; i < frames; ++i) writer->add_frame(frame_of(format.width, format.height, i).data());
  writer->finish();
}

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

// Where a pixel of the upright frame lies in the stored one of h rows and w columns.
using Place = std::function<std::array<int64_t, 2>(int64_t y, int64_t x, int64_t h, int64_t w)>;
const Place kQuarterBack = [](auto y, auto x, auto, auto w) { return std::array{x, w - 1 - y}; };

void expect_turned(const TensorView& frames, const TensorView& stored, bool quarter, const Place& place) {
  const int64_t h = stored.extent(1), w = stored.extent(2);
  ASSERT_EQ(frames.shape(), (Shape{stored.extent(0), quarter ? w : h, quarter ? h : w, 3}));
  for (int64_t frame = 0; frame < frames.extent(0); ++frame) {
    for (int64_t y = 0; y < frames.extent(1); ++y) {
      for (int64_t x = 0; x < frames.extent(2); ++x) {
        const auto [row, column] = place(y, x, h, w);
        const void* pixel = frames.select(0, frame).select(0, y).select(0, x).raw();
        ASSERT_EQ(std::memcmp(pixel, stored.select(0, frame).select(0, row).select(0, column).raw(), 3), 0)
            << frame << ": " << y << ", " << x;
      }
    }
  }
}

// An .mp4's bytes with another display matrix: a, b, c, d as QuickTime names them, in the track's header.
std::string with_matrix(std::string mp4, const std::array<double, 4>& abcd) {
  const auto big_endian = [](double value) {
    const auto fixed = static_cast<uint32_t>(static_cast<int32_t>(std::lround(value * 65536)));
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(fixed >> shift));
    return text;
  };
  const auto text_of = [&](double a, double b, double c, double d) {
    return big_endian(a) + big_endian(b) + std::string(4, '\0') + big_endian(c) + big_endian(d);
  };
  const std::string identity = text_of(1, 0, 0, 1);
  const size_t at = mp4.find(identity, mp4.find("tkhd"));
  EXPECT_NE(at, std::string::npos);
  return mp4.replace(at, identity.size(), text_of(abcd[0], abcd[1], abcd[2], abcd[3]));
}

TEST(VideoReader, FollowsTheDisplayMatrix) {
  const TestFolder folder;
  write_clip(folder / "x.mp4", format_of(48, 32), 2);
  const std::string mp4 = file_bytes(folder / "x.mp4");
  const Clip stored = read_clip(folder / "x.mp4");
  struct Turn {
    std::array<double, 4> abcd;
    bool quarter;
    Place place;
  };
  const std::vector<Turn> turns{
      {{0, 1, -1, 0},  // clockwise
       true,
       [](auto y, auto x, auto h, auto) {
         return std::array{h - 1 - x, y};
       }},
      {{-1, 0, 0, -1},
       false,
       [](auto y, auto x, auto h, auto w) {
         return std::array{h - 1 - y, w - 1 - x};
       }},
      {{0, -1, 1, 0}, true, kQuarterBack},
      {{0, -2, 2, 0}, true, kQuarterBack},  // a scale is none of ours
      {{-1, 0, 0, 1},
       false,
       [](auto y, auto x, auto, auto w) {
         return std::array{y, w - 1 - x};
       }},
      {{1, 0, 0, -1},
       false,
       [](auto y, auto x, auto h, auto) {
         return std::array{h - 1 - y, x};
       }},
      {{0, 1, 1, 0},
       true,
       [](auto y, auto x, auto, auto) {
         return std::array{x, y};
       }},
      {{0, -1, -1, 0},
       true,
       [](auto y, auto x, auto h, auto w) {
         return std::array{h - 1 - x, w - 1 - y};
       }},
  };
  for (const Turn& turn : turns) {
    SCOPED_TRACE(testing::PrintToString(turn.abcd));
    const auto path = folder.write("turned.mp4", with_matrix(mp4, turn.abcd));
    expect_turned(read_clip(path).frames, stored.frames, turn.quarter, turn.place);
    // What is resized, and to what, is the upright frame.
    std::vector<ImageSize> asked;
    const ControlClip clip = read_control_clip(path, 2, "video=", [&](ImageSize own) {
      asked.push_back(own);
      return own;
    });
    expect_turned(clip.frames, stored.frames, turn.quarter, turn.place);
    EXPECT_EQ(asked, std::vector<ImageSize>{clip.own});
    EXPECT_EQ(clip.own, turn.quarter ? (ImageSize{48, 32}) : (ImageSize{32, 48}));
  }
}

TEST(VideoReader, OtherAnglesAreRefused) {
  const TestFolder folder;
  write_clip(folder / "x.mp4", format_of(48, 32), 1);
  const std::string mp4 = file_bytes(folder / "x.mp4");
  const auto refusal = [&](const std::array<double, 4>& abcd) {
    const auto path = folder.write("turned.mp4", with_matrix(mp4, abcd));
    return error_of([&] { read_control_clip(path, 1, "video="); });
  };
  const double diagonal = std::sqrt(0.5), sine = 0.5, cosine = std::sqrt(0.75);
  EXPECT_THAT(refusal({diagonal, diagonal, -diagonal, diagonal}),
              AllOf(HasSubstr("turned.mp4"), HasSubstr("45 degrees"), HasSubstr("0, 90, 180 and 270")));
  EXPECT_THAT(refusal({cosine, -sine, sine, cosine}), HasSubstr("330 degrees"));
  EXPECT_THAT(refusal({0, 0, 0, 0}), HasSubstr("display matrix"));
}

// A video of `frames` small frames by an encoder of that name. `written` follows each packet and may give one more.
// With a matrix the frames have one colour: kFlat.
using Written = std::function<FFmpegPtr<AVPacket>(int64_t frame)>;
constexpr std::array<uint8_t, 3> kFlat{120, 90, 150};
void encode_clip(const std::filesystem::path& path, const char* container, const char* codec, int64_t frames,
                 const Written& written = {}, AVColorSpace matrix = AVCOL_SPC_UNSPECIFIED) {
  AVFormatContext* muxer = nullptr;
  check(avformat_alloc_output_context2(&muxer, nullptr, container, path.c_str()), "make the container");
  check(avio_open(&muxer->pb, path.c_str(), AVIO_FLAG_WRITE), "be written");
  const AVCodec* kind = avcodec_find_encoder_by_name(codec);
  const FFmpegPtr<AVCodecContext> encoder(avcodec_alloc_context3(kind));
  encoder->width = 48;
  encoder->height = 32;
  encoder->pix_fmt = AV_PIX_FMT_YUV420P;
  encoder->colorspace = matrix;
  encoder->framerate = {16, 1};
  encoder->time_base = {1, 16};
  if ((muxer->oformat->flags & AVFMT_GLOBALHEADER) != 0) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  check(avcodec_open2(encoder.get(), kind, nullptr), "open the encoder");
  AVStream* stream = avformat_new_stream(muxer, nullptr);
  check(avcodec_parameters_from_context(stream->codecpar, encoder.get()), "be set up");
  stream->time_base = encoder->time_base;
  stream->avg_frame_rate = encoder->framerate;
  check(avformat_write_header(muxer, nullptr), "be written");
  const auto write = [&](AVPacket* packet) {
    av_packet_rescale_ts(packet, encoder->time_base, stream->time_base);
    check(av_interleaved_write_frame(muxer, packet), "be written");
  };
  int64_t packets = 0;
  const auto encode = [&](const AVFrame* frame) {
    check(avcodec_send_frame(encoder.get(), frame), "encode a frame");
    const FFmpegPtr<AVPacket> packet(av_packet_alloc());
    while (avcodec_receive_packet(encoder.get(), packet.get()) >= 0) {
      write(packet.get());
      if (const FFmpegPtr<AVPacket> more = written ? written(packets) : nullptr) write(more.get());
      ++packets;
    }
  };
  for (int64_t index = 0; index < frames; ++index) {
    const FFmpegPtr<AVFrame> frame = video_plugin::make_frame(AV_PIX_FMT_YUV420P, 48, 32);
    for (int plane = 0; plane < 3; ++plane) {
      const int64_t bytes = int64_t{plane == 0 ? 32 : 16} * frame->linesize[plane];
      for (int64_t i = 0; i < bytes; ++i) {
        const auto varied = static_cast<uint8_t>(30 + i / 16 + 8 * index);
        frame->data[plane][i] = matrix == AVCOL_SPC_UNSPECIFIED ? varied : kFlat[static_cast<size_t>(plane)];
      }
    }
    frame->pts = 2 * index;  // every other tick is left for more packets
    encode(frame.get());
  }
  encode(nullptr);
  check(av_write_trailer(muxer), "be written");
  check(avio_closep(&muxer->pb), "be written");
  avformat_free_context(muxer);
}

// ITU-T H.273, 8.3: each by the shares of red and blue in its luma, in the range 16 to 235 and 240.
TEST(VideoReader, ColoursFollowTheMatrixThatIsStated) {
  using Matrix = std::tuple<AVColorSpace, double, double>;
  const TestFolder folder;
  for (const auto& [space, kr, kb] :
       {Matrix{AVCOL_SPC_BT709, 0.2126, 0.0722}, Matrix{AVCOL_SPC_FCC, 0.30, 0.11},
        Matrix{AVCOL_SPC_SMPTE170M, 0.299, 0.114}, Matrix{AVCOL_SPC_SMPTE240M, 0.212, 0.087},
        Matrix{AVCOL_SPC_BT2020_NCL, 0.2627, 0.0593}, Matrix{AVCOL_SPC_BT2020_CL, 0.2627, 0.0593}}) {
    encode_clip(folder / "x.h264", "h264", "libx264", 1, {}, space);
    const double luma = (kFlat[0] - 16) * 255.0 / 219, chroma = 2 * 255.0 / 224;
    const double red = luma + chroma * (1 - kr) * (kFlat[2] - 128), blue = luma + chroma * (1 - kb) * (kFlat[1] - 128);
    const std::array<double, 3> wanted{red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue};
    const auto read = mean_colour(read_clip(folder / "x.h264").frames.data<uint8_t>(), 48 * 32);
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(read[c], wanted[c], 2) << space << ", channel " << c;
  }
}

// A stream may say it itself, in a message before a frame, where its container has no place for it.
TEST(VideoReader, FollowsTheOrientationInAStream) {
  const TestFolder folder;
  encode_clip(folder / "x.h264", "h264", "libx264", 1);
  const Clip stored = read_clip(folder / "x.h264");
  ASSERT_EQ(stored.frames.shape(), (Shape{1, 32, 48, 3}));
  // Supplemental information (6) of type 47 and 3 bytes: no mirroring, 0x4000 / 2^16 of a turn anticlockwise.
  const std::string message("\0\0\1\x06\x2f\x03\x08\x00\x09\x80", 10);
  std::string bytes = file_bytes(folder / "x.h264");
  const size_t picture = bytes.find(std::string("\0\0\1\x65", 4));
  ASSERT_NE(picture, std::string::npos);
  folder.write("turned.h264", bytes.insert(picture, message));
  expect_turned(read_clip(folder / "turned.h264").frames, stored.frames, true, kQuarterBack);
}

// Encoders that drop a frame write a packet that says so, as DivX does. It is no frame to the decoder.
TEST(VideoReader, CountsFramesAndNotPackets) {
  const TestFolder folder;
  constexpr int64_t kFrames = 6;
  const auto drop = [](int64_t frame) -> FFmpegPtr<AVPacket> {
    if (frame != 1 && frame != 4) return nullptr;
    FFmpegPtr<AVPacket> packet(av_packet_alloc());
    // A predicted picture (01) of this second (0) with nothing coded: time in ticks of a 16th, and the flag at the end.
    const auto time = static_cast<uint8_t>(2 * frame + 1);
    const uint8_t bytes[] = {0, 0, 1, 0xb6, static_cast<uint8_t>(0x50 | time), 0x9f};
    check(av_new_packet(packet.get(), sizeof bytes), "be made");
    std::memcpy(packet->data, bytes, sizeof bytes);
    packet->pts = packet->dts = time;
    return packet;
  };
  encode_clip(folder / "x.mp4", "mp4", "mpeg4", kFrames, drop);
  EXPECT_EQ(read_clip(folder / "x.mp4").frames.extent(0), kFrames);
  for (const int64_t frames : {int64_t{1}, int64_t{2}, int64_t{3}, kFrames - 1, kFrames}) {
    const ControlClip clip = read_control_clip(folder / "x.mp4", frames, "video=");
    EXPECT_EQ(clip.available, kFrames) << frames;
    EXPECT_EQ(clip.frames.extent(0), frames);
  }
  EXPECT_THAT(error_of([&] { read_control_clip(folder / "x.mp4", kFrames + 1, "video="); }),
              AllOf(HasSubstr("has 6 frames"), HasSubstr("7 are needed")));
}

const std::string kCorpus = std::string(kGoldenFolder) + "/../fuzz/corpus/video/";

// Frames are taken in their order, however long each is shown.
TEST(VideoReader, AVariableRateChangesNoFrame) {
  const Clip steady = read_clip(kCorpus + "clip.mp4"), variable = read_clip(kCorpus + "variable_rate.mp4");
  ASSERT_EQ(variable.frames.shape(), steady.frames.shape());
  EXPECT_NE(variable.fps, steady.fps);
  EXPECT_EQ(std::memcmp(variable.frames.view().raw(), steady.frames.view().raw(), steady.frames.view().bytes()), 0);
}

TEST(VideoReader, SoundAloneAndNoFramesAreRefused) {
  EXPECT_THAT(error_of([&] { read_clip(kCorpus + "audio_alone.mp4"); }),
              AllOf(HasSubstr("audio_alone.mp4"), HasSubstr("holds no picture or video")));
  EXPECT_THAT(error_of([&] { read_clip(kCorpus + "no_frames.mp4"); }), HasSubstr("no_frames.mp4"));
  EXPECT_THAT(error_of([&] { read_control_clip(kCorpus + "no_frames.mp4", 1, "video="); }),
              HasSubstr("has 0 frames, but 1 are needed"));
}

// A recording that broke off is used as far as it is asked for.
TEST(VideoReader, DamageBehindTheFramesUsedIsNoError) {
  constexpr int64_t kFrames = 6;
  const TestFolder folder;
  encode_clip(folder / "x.mp4", "mp4", "mpeg4", kFrames);
  std::ifstream file(folder / "x.mp4", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = bytes.find("moov");  // behind the packets
  ASSERT_NE(end, std::string::npos);
  for (size_t i = end / 2; i < end - 4; ++i) bytes[i] = static_cast<char>(0xff);
  const auto damaged = folder.write("damaged.mp4", bytes);
  const ControlClip clip = read_control_clip(damaged, 1, "video=");
  EXPECT_EQ(clip.frames.extent(0), 1);
  EXPECT_LE(clip.available, kFrames);
  EXPECT_NE(error_of([&] { read_control_clip(damaged, kFrames, "video="); }), "");
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

TEST(VideoReader, BadFiles) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { read_clip(folder / "none.mp4"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([&] { read_clip(folder.path()); }), HasSubstr("regular file"));
  EXPECT_THAT(error_of([&] { read_clip(folder.write("x.mp4", "")); }), HasSubstr("x.mp4"));
  EXPECT_THAT(error_of([&] { read_clip(folder.write("y.mp4", "no video at all, only text")); }), HasSubstr("y.mp4"));
}

}  // namespace
}  // namespace zoetrope::io
