#include "io/media/video_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "base/project_folders.h"
#include "io/media/test_clips.h"
#include "io/weights/test_files.h"
#include "video_plugin/ffmpeg.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using video_plugin::check;
using video_plugin::FFmpegPtr;

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

struct Coding {
  const char *container, *codec;  // as FFmpeg names them
  AVPixelFormat pixels = AV_PIX_FMT_YUV420P;
  AVColorSpace matrix = AVCOL_SPC_UNSPECIFIED;
  AVColorTransferCharacteristic transfer = AVCOL_TRC_UNSPECIFIED;
  AVRational pixel = {0, 1};                                 // width to height; 0: not said
  std::vector<int> levels{};                                 // of each plane; empty: they vary
  std::function<FFmpegPtr<AVPacket>(int64_t frame)> more{};  // follows each packet and may give another
};

void fill(AVFrame& frame, int64_t index, const std::vector<int>& levels) {
  const AVPixFmtDescriptor* format = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  for (int plane = 0; plane < av_pix_fmt_count_planes(static_cast<AVPixelFormat>(frame.format)); ++plane) {
    const bool chroma = plane == 1 || plane == 2;
    const int64_t rows = chroma ? frame.height >> format->log2_chroma_h : frame.height;
    const int bytes = format->comp[plane].depth / 8 + (format->comp[plane].depth % 8 > 0 ? 1 : 0);
    for (int64_t i = 0; i < rows * frame.linesize[plane] / bytes; ++i) {
      const int64_t level = levels.empty() ? 30 + i / 16 + 8 * index : levels[static_cast<size_t>(plane)];
      if (bytes == 4) reinterpret_cast<float*>(frame.data[plane])[i] = static_cast<float>(level) / 255;
      else if (bytes == 2) reinterpret_cast<uint16_t*>(frame.data[plane])[i] = static_cast<uint16_t>(level);
      else frame.data[plane][i] = static_cast<uint8_t>(level);
    }
  }
  if (frame.format == AV_PIX_FMT_PAL8) std::memset(frame.data[1], levels[1], AVPALETTE_SIZE);
}

// A video of `frames` small frames.
void encode_clip(const std::filesystem::path& path, const Coding& coding, int64_t frames) {
  AVFormatContext* muxer = nullptr;
  check(avformat_alloc_output_context2(&muxer, nullptr, coding.container, path.c_str()), "make the container");
  check(avio_open(&muxer->pb, path.c_str(), AVIO_FLAG_WRITE), "be written");
  const AVCodec* kind = avcodec_find_encoder_by_name(coding.codec);
  const FFmpegPtr<AVCodecContext> encoder(avcodec_alloc_context3(kind));
  encoder->width = 48;
  encoder->height = 32;
  encoder->pix_fmt = coding.pixels;
  encoder->colorspace = coding.matrix;
  encoder->color_trc = coding.transfer;
  encoder->sample_aspect_ratio = coding.pixel;
  encoder->framerate = {16, 1};
  encoder->time_base = {1, 16};
  if ((muxer->oformat->flags & AVFMT_GLOBALHEADER) != 0) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  check(avcodec_open2(encoder.get(), kind, nullptr), "open the encoder");
  AVStream* stream = avformat_new_stream(muxer, nullptr);
  check(avcodec_parameters_from_context(stream->codecpar, encoder.get()), "be set up");
  stream->time_base = encoder->time_base;
  stream->avg_frame_rate = encoder->framerate;
  stream->sample_aspect_ratio = coding.pixel;
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
      if (const FFmpegPtr<AVPacket> more = coding.more ? coding.more(packets) : nullptr) write(more.get());
      ++packets;
    }
  };
  for (int64_t index = 0; index < frames; ++index) {
    const FFmpegPtr<AVFrame> frame = video_plugin::make_frame(coding.pixels, 48, 32);
    fill(*frame, index, coding.levels);
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
  const std::vector<int> flat{120, 90, 150};
  for (const auto& [space, kr, kb] :
       {Matrix{AVCOL_SPC_BT709, 0.2126, 0.0722}, Matrix{AVCOL_SPC_FCC, 0.30, 0.11},
        Matrix{AVCOL_SPC_SMPTE170M, 0.299, 0.114}, Matrix{AVCOL_SPC_SMPTE240M, 0.212, 0.087},
        Matrix{AVCOL_SPC_BT2020_NCL, 0.2627, 0.0593}, Matrix{AVCOL_SPC_BT2020_CL, 0.2627, 0.0593}}) {
    encode_clip(folder / "x.h264", {.container = "h264", .codec = "libx264", .matrix = space, .levels = flat}, 1);
    const double luma = (flat[0] - 16) * 255.0 / 219, chroma = 2 * 255.0 / 224;
    const double red = luma + chroma * (1 - kr) * (flat[2] - 128), blue = luma + chroma * (1 - kb) * (flat[1] - 128);
    const std::array<double, 3> wanted{red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue};
    const auto read = mean_colour(read_clip(folder / "x.h264").frames.data<uint8_t>(), 48 * 32);
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(read[c], wanted[c], 2) << space << ", channel " << c;
  }
}

// As of 8 bits: without a range that is stated it is the full one, as programs for depth write it.
TEST(VideoReader, GreyOfMoreThanEightBitsHasTheFullRange) {
  const TestFolder folder;
  for (const auto& [pixels, bits] : {std::pair{AV_PIX_FMT_GRAY8, 8}, std::pair{AV_PIX_FMT_GRAY10, 10},
                                     std::pair{AV_PIX_FMT_GRAY12, 12}, std::pair{AV_PIX_FMT_GRAY16, 16}}) {
    for (const int level : {0, 8, 128, 245, 255}) {
      encode_clip(folder / "x.mkv",
                  {.container = "matroska", .codec = "ffv1", .pixels = pixels, .levels = {level << (bits - 8)}}, 1);
      EXPECT_NEAR(*read_clip(folder / "x.mkv").frames.data<uint8_t>(), level, 1) << bits << " bits";
    }
  }
}

TEST(VideoReader, SaysWhatIsHdr) {
  const TestFolder folder;
  for (const auto& [transfer, hdr] : {std::pair{AVCOL_TRC_UNSPECIFIED, false}, std::pair{AVCOL_TRC_BT709, false},
                                      std::pair{AVCOL_TRC_SMPTE2084, true}, std::pair{AVCOL_TRC_ARIB_STD_B67, true}}) {
    encode_clip(folder / "x.h264", {.container = "h264", .codec = "libx264", .transfer = transfer}, 2);
    EXPECT_EQ(read_control_clip(folder / "x.h264", 1, "video=").hdr, hdr) << transfer;
  }
}

TEST(VideoReader, SaysWhichPixelsAreNotSquare) {
  const TestFolder folder;
  const auto aspect_of = [&](const char* name, Coding coding) {
    encode_clip(folder / name, coding, 2);
    return read_control_clip(folder / name, 1, "video=").pixel_aspect;
  };
  const Coding mp4{.container = "mp4", .codec = "libx264"}, mkv{.container = "matroska", .codec = "ffv1"};
  for (const auto& [name, coding] : {std::pair{"x.mp4", mp4}, std::pair{"x.mkv", mkv}}) {
    for (const auto& [pixel, text] : {std::pair{AVRational{16, 15}, "16:15"}, std::pair{AVRational{8, 9}, "8:9"},
                                      std::pair{AVRational{1, 1}, ""}, std::pair{AVRational{0, 1}, ""}}) {
      Coding other = coding;
      other.pixel = pixel;
      EXPECT_EQ(aspect_of(name, other), text) << name;
    }
  }
}

TEST(VideoReader, PixelsOfTurnedFramesAreTurned) {
  const TestFolder folder;
  encode_clip(folder / "x.mp4", {.container = "mp4", .codec = "libx264", .pixel = {16, 15}}, 1);
  const auto path = folder.write("turned.mp4", with_matrix(file_bytes(folder / "x.mp4"), {0, 1, -1, 0}));
  const ControlClip clip = read_control_clip(path, 1, "video=");
  EXPECT_EQ(clip.own, (ImageSize{48, 32}));  // stored with a width of 48
  EXPECT_EQ(clip.pixel_aspect, "15:16");
}

TEST(VideoReader, SaysWhichAlphaIsDropped) {
  const TestFolder folder;
  const auto transparent = [&](AVPixelFormat pixels, const char* codec, std::vector<int> levels) {
    encode_clip(folder / "x.mkv",
                {.container = "matroska", .codec = codec, .pixels = pixels, .levels = std::move(levels)}, 2);
    return read_control_clip(folder / "x.mkv", 2, "mask=").transparent;
  };
  EXPECT_FALSE(transparent(AV_PIX_FMT_RGBA, "png", {255}));
  EXPECT_TRUE(transparent(AV_PIX_FMT_RGBA, "png", {128}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_YA8, "png", {255}));
  EXPECT_TRUE(transparent(AV_PIX_FMT_YA8, "png", {254}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_YUVA420P, "ffv1", {120, 90, 150, 255}));
  EXPECT_TRUE(transparent(AV_PIX_FMT_YUVA420P, "ffv1", {120, 90, 150, 0}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_YUVA444P10, "ffv1", {500, 400, 600, 1023}));
  EXPECT_TRUE(transparent(AV_PIX_FMT_YUVA444P10, "ffv1", {500, 400, 600, 1022}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_YUV420P, "ffv1", {120, 90, 150}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_GBRAPF32, "exr", {120, 90, 150, 255}));
  EXPECT_TRUE(transparent(AV_PIX_FMT_GBRAPF32, "exr", {120, 90, 150, 254}));
  EXPECT_FALSE(transparent(AV_PIX_FMT_PAL8, "png", {5, 255}));  // indices, and the bytes of every colour
  EXPECT_TRUE(transparent(AV_PIX_FMT_PAL8, "png", {5, 128}));
}

// Named as a picture, which other programs see in it.
TEST(VideoReader, AnAnimatedPngIsAVideo) {
  const TestFolder folder;
  const Coding coding{.container = "apng", .codec = "apng", .pixels = AV_PIX_FMT_RGB24};
  encode_clip(folder / "x.png", coding, 3);
  EXPECT_FALSE(is_picture(folder / "x.png"));
  const ControlClip clip = read_control_clip(folder / "x.png", 3, "mask=");
  EXPECT_EQ(clip.available, 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(*clip.frames.view().select(0, i).data<uint8_t>(), 30 + 8 * i) << i;
  EXPECT_THAT(error_of([&] { read_image(folder / "x.png"); }), HasSubstr("x.png: is an animation; save one picture"));
  encode_clip(folder / "one.png", coding, 1);
  EXPECT_TRUE(is_picture(folder / "one.png"));
  EXPECT_EQ(*read_image(folder / "one.png").data<uint8_t>(), 30);
}

// A stream may say it itself, in a message before a frame, where its container has no place for it.
TEST(VideoReader, FollowsTheOrientationInAStream) {
  const TestFolder folder;
  encode_clip(folder / "x.h264", {.container = "h264", .codec = "libx264"}, 1);
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
  encode_clip(folder / "x.mp4", {.container = "mp4", .codec = "mpeg4", .more = drop}, kFrames);
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
  encode_clip(folder / "x.mp4", {.container = "mp4", .codec = "mpeg4"}, kFrames);
  std::ifstream file(folder / "x.mp4", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = bytes.find("moov");  // behind the packets
  ASSERT_NE(end, std::string::npos);
  for (size_t i = end / 2; i < end - 4; ++i) bytes[i] = static_cast<char>(0xff);
  const auto damaged = folder.write("damaged.mp4", bytes);
  const ControlClip clip = read_control_clip(damaged, 1, "video=");
  EXPECT_EQ(clip.frames.extent(0), 1);
  EXPECT_LT(clip.available, kFrames);
  EXPECT_NE(clip.damage, "");
  EXPECT_NE(error_of([&] { read_control_clip(damaged, kFrames, "video="); }), "");
}

// With the index in front, a copy that broke off looks whole at first. It may end between two packets.
TEST(VideoReader, EveryCutIsSaid) {
  constexpr int kFrames = 6;
  constexpr size_t kBytes = 120;  // a few packets
  const TestFolder folder;
  write_clip(folder / "x.mp4", format_of(64, 48), kFrames);
  const std::string mp4 = file_bytes(folder / "x.mp4");
  EXPECT_EQ(read_control_clip(folder / "x.mp4", 1, "video=").damage, "");
  int64_t most = 0;
  for (size_t size = mp4.size() - kBytes; size < mp4.size(); ++size) {
    const auto cut = folder.write("cut.mp4", mp4.substr(0, size));
    ControlClip clip;
    const std::string error = error_of([&] { clip = read_control_clip(cut, 1, "video="); });
    if (error != "no error") continue;  // decoders hold frames back, which damage loses
    EXPECT_NE(clip.damage, "") << size;
    EXPECT_EQ(read_control_clip(cut, clip.available, "video=").available, clip.available) << size;
    most = std::max(most, clip.available);
  }
  EXPECT_EQ(most, kFrames - 1);
}

// The index is behind the frames, and FFmpeg reads without it.
TEST(VideoReader, ACutMatroskaIsSaid) {
  constexpr int kFrames = 6;
  const TestFolder folder;
  write_clip(folder / "x.webm", format_of(64, 48), kFrames);
  const ControlClip whole = read_control_clip(folder / "x.webm", 1, "video=");
  EXPECT_EQ(whole.available, kFrames);
  EXPECT_EQ(whole.damage, "");
  const std::string webm = file_bytes(folder / "x.webm");
  for (size_t size = webm.size() / 2; size < webm.size(); ++size) {
    const auto cut = folder.write("cut.webm", webm.substr(0, size));
    ControlClip clip;
    const std::string error = error_of([&] { clip = read_control_clip(cut, 1, "video="); });
    EXPECT_TRUE(error != "no error" || !clip.damage.empty()) << size << " of " << webm.size();
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
