#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/media/video_plugin_host.h"
#include "io/media/video_writers.h"

namespace zoetrope::io {

namespace {

// x265 writes beyond its buffers where frames are narrower (version 3.5, by Valgrind: 32 and 48 do, 64 does not).
constexpr int kLeastH265Width = 64;

// What an encoder holds: of each pixel of a frame that is `margin` wider and higher, `kept` bytes (references with
// their interpolations, output) and `each` for every frame, of `frames` at most, that it looks ahead at; `rest` bytes.
// By the differences of VmHWM at 416 × 240, 832 × 480 and 1280 × 720, from which these differ by at most 15 % of all
// but the shortest clips.
struct EncoderMemory {
  int64_t margin;
  double kept, each;
  int64_t frames;
  double rest;
};
// x264 looks 40 frames ahead, and has 3 B-frames and 4 threads; x265 looks 20 ahead. libvpx allocates all at once, and
// libwebp keeps what it encoded.
constexpr EncoderMemory kX264{64, 47, 3.4, 40 + 3 + 4, 8e6}, kX265{176, 35, 4.5, 28, 12e6}, kVp9{320, 93, 0, 0, 6e6},
    kWebp{0, 24, 0.25, std::numeric_limits<int64_t>::max(), 5e6};

// How a kind of file is written. Qualities are visually lossless (x264: 17 to 18; libx265 and libvpx-vp9 count
// otherwise).
struct Coding {
  const char* extension;
  const char* container;  // as FFmpeg names it
  const char* codec;      // as the key `codec` names it
  const char* encoder;
  VideoPluginPixels pixels;
  int crf, most_crf;  // most_crf 0: it has no such quality
  std::map<std::string, std::string> options;
  const EncoderMemory& memory;
};

// The first of an extension is its default.
const std::vector<Coding>& codings() {
  // Bits depend on the number of threads, which would be that of the processors (x265: four of the pool decide more
  // together). And x265 would write the processor's kind.
  const std::map<std::string, std::string> x264{{"preset", "medium"}, {"x264-params", "threads=4"}};
  const std::map<std::string, std::string> x265{{"preset", "medium"},
                                                {"x265-params", "log-level=error:info=0:pools=2:frame-threads=1"}};
  static const std::vector<Coding> all{
      {".mp4", "mp4", "h264", "libx264", kVideoYuv420, 17, 51, x264, kX264},
      {".mp4", "mp4", "h265", "libx265", kVideoYuv420, 20, 51, x265, kX265},
      {".mov", "mov", "h264", "libx264", kVideoYuv420, 17, 51, x264, kX264},
      {".mov", "mov", "h265", "libx265", kVideoYuv420, 20, 51, x265, kX265},
      {".webm", "webm", "vp9", "libvpx-vp9", kVideoYuv420, 20, 63, {{"row-mt", "1"}, {"cpu-used", "2"}}, kVp9},
      {".webp", "webp", "webp", "libwebp_anim", kVideoRgb32, 0, 0, {{"quality", "90"}}, kWebp}};
  return all;
}

const Coding& coding_of(const std::filesystem::path& path, const std::string& extension, const VideoFormat& format) {
  std::vector<const Coding*> known;
  for (const Coding& coding : codings())
    if (coding.extension == extension) known.push_back(&coding);
  const Coding* chosen = format.codec.empty() ? known.front() : nullptr;
  std::string names;
  for (const Coding* coding : known) {
    names += (names.empty() ? "" : " or ") + std::string(coding->codec);
    if (format.codec == coding->codec) chosen = coding;
  }
  if (chosen == nullptr) fail("{}: codec={}: files of this kind hold {}", path.string(), format.codec, names);
  if (format.crf && chosen->most_crf == 0) {
    fail("{}: crf={}: files of this kind have no such quality; leave it out", path.string(), *format.crf);
  }
  if (format.crf && *format.crf > chosen->most_crf) {
    fail("{}: crf={}: of {} it goes from 0, the best, to {}", path.string(), *format.crf, chosen->codec,
         chosen->most_crf);
  }
  if (chosen->codec == std::string("h265") && format.width > 0 && format.width < kLeastH265Width) {
    fail("{}: codec=h265: frames must be at least {} pixels wide, and these have {}; use h264", path.string(),
         kLeastH265Width, format.width);
  }
  return *chosen;
}

EncodedFormat encoded(const Coding& coding, const VideoFormat& format) {
  const std::string container = coding.container;
  EncodedFormat out{.container = container,
                    .encoder = coding.encoder,
                    .codec_tag = coding.codec == std::string("h265") ? "hvc1" : "",  // what players ask for
                    .pixels = coding.pixels,
                    .width = format.width,
                    .height = format.height,
                    .fps = format.fps,
                    .ticks = 0,
                    .encoder_options = coding.options,
                    .container_options = {},
                    .tags = format.metadata};
  // x265 reads memory that it did not set where frames are one block wide, 64 pixels unless told otherwise.
  if (coding.encoder == std::string("libx265") && format.width <= kLeastH265Width) {
    out.encoder_options["x265-params"] += ":ctu=32";
  }
  if (coding.most_crf > 0) out.encoder_options.emplace("crf", std::to_string(format.crf.value_or(coding.crf)));
  // Tags of any name; and the index in front, so that a browser can start before it has the whole file.
  if (container == "mp4" || container == "mov") {
    out.container_options.emplace("movflags", "use_metadata_tags+faststart");
  }
  if (container == "webp") out.container_options.emplace("loop", "0");  // endless
  return out;
}

class FFmpegWriter final : public FrameWriter {
 public:
  FFmpegWriter(const std::filesystem::path& path, const VideoFormat& format, const Coding& coding)
      : FrameWriter(format), path_(path), encoder_(path, encoded(coding, format)) {}

  PixelRounding rounding() const override { return PixelRounding::kTruncate; }

  void add_frame(const uint8_t* rgb) override { encoder_.add_frame(rgb, nullptr, count_++, 1); }

  void finish() override {
    if (count_ == 0) fail("{}: no frame was added, so there is nothing to write", path_.string());
    encoder_.finish();
  }

 private:
  const std::filesystem::path path_;
  VideoEncoder encoder_;
  int64_t count_ = 0;
};

}  // namespace

bool ffmpeg_writes(const std::string& extension) {
  return std::any_of(codings().begin(), codings().end(),
                     [&](const Coding& coding) { return coding.extension == extension; });
}

void check_ffmpeg(const std::filesystem::path& path, const std::string& extension, const VideoFormat& format) {
  coding_of(path, extension, format);
}

int64_t ffmpeg_bytes(const std::filesystem::path& path, const std::string& extension, const VideoFormat& format) {
  const EncoderMemory& memory = coding_of(path, extension, format).memory;
  const int64_t frames = std::min(format.frames, memory.frames);
  const auto pixels = static_cast<double>((format.width + memory.margin) * (format.height + memory.margin));
  return std::llround(pixels * (memory.kept + memory.each * static_cast<double>(frames)) + memory.rest);
}

std::unique_ptr<FrameWriter> open_ffmpeg(const std::filesystem::path& path, const std::string& extension,
                                         const VideoFormat& format) {
  return std::make_unique<FFmpegWriter>(path, format, coding_of(path, extension, format));
}

}  // namespace zoetrope::io
