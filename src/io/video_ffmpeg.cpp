#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/ffmpeg.h"
#include "io/video_writers.h"

namespace zoetrope::io {

namespace {

// How a kind of file is written. Qualities are visually lossless (x264: 17 to 18; libx265 and libvpx-vp9 count
// otherwise).
struct Coding {
  const char* extension;
  const char* container;  // as FFmpeg names it
  const char* codec;      // as the key `codec` names it
  const char* encoder;
  AVPixelFormat pixels;
  int crf, most_crf;  // most_crf 0: it has no such quality
  std::vector<std::pair<const char*, const char*>> options;
};

// The first of an extension is its default.
const std::vector<Coding>& codings() {
  const std::vector<std::pair<const char*, const char*>> x264{{"preset", "medium"}};
  const std::vector<std::pair<const char*, const char*>> x265{{"preset", "medium"}, {"x265-params", "log-level=error"}};
  static const std::vector<Coding> all{
      {".mp4", "mp4", "h264", "libx264", AV_PIX_FMT_YUV420P, 17, 51, x264},
      {".mp4", "mp4", "h265", "libx265", AV_PIX_FMT_YUV420P, 20, 51, x265},
      {".mov", "mov", "h264", "libx264", AV_PIX_FMT_YUV420P, 17, 51, x264},
      {".mov", "mov", "h265", "libx265", AV_PIX_FMT_YUV420P, 20, 51, x265},
      {".webm", "webm", "vp9", "libvpx-vp9", AV_PIX_FMT_YUV420P, 20, 63, {{"row-mt", "1"}, {"cpu-used", "2"}}},
      {".webp", "webp", "webp", "libwebp_anim", AV_PIX_FMT_RGB32, 0, 0, {{"quality", "90"}}}};
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
  return *chosen;
}

class FFmpegWriter final : public FrameWriter {
 public:
  FFmpegWriter(const std::filesystem::path& path, const VideoFormat& format, const Coding& coding)
      : FrameWriter(format),
        path_(path),
        subsampled_(coding.pixels == AV_PIX_FMT_YUV420P),
        width_(format.width + (subsampled_ ? format.width % 2 : 0)),
        height_(format.height + (subsampled_ ? format.height % 2 : 0)),
        muxer_(coding.container, path),
        encoder_(coding.encoder, path) {
    encoder_->width = width_;
    encoder_->height = height_;
    encoder_->pix_fmt = coding.pixels;
    encoder_->framerate = av_d2q(format.fps, 1001000);  // exact for 24000/1001 and the like
    encoder_->time_base = av_inv_q(encoder_->framerate);
    if (subsampled_) {
      encoder_->colorspace = AVCOL_SPC_BT709;
      encoder_->color_primaries = AVCOL_PRI_BT709;
      encoder_->color_trc = AVCOL_TRC_BT709;
      encoder_->color_range = AVCOL_RANGE_MPEG;
    }
    if (muxer_.needs_global_header()) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (coding.codec == std::string("h265")) encoder_->codec_tag = MKTAG('h', 'v', 'c', '1');  // what players ask for
    if (coding.most_crf > 0) encoder_.set_option("crf", std::to_string(format.crf.value_or(coding.crf)).c_str());
    for (const auto& [key, value] : coding.options) encoder_.set_option(key, value);
    encoder_.open();

    muxer_.set_tags(format.metadata);
    AVDictionary* options = nullptr;
    // Tags of any name; and the index in front, so that a browser can start before it has the whole file.
    if (coding.container == std::string("mp4") || coding.container == std::string("mov"))
      av_dict_set(&options, "movflags", "use_metadata_tags+faststart", 0);
    if (coding.container == std::string("webp")) av_dict_set(&options, "loop", "0", 0);  // endless
    muxer_.start(encoder_, &options);

    scaler_.reset(sws_getContext(width_, height_, AV_PIX_FMT_RGB24, width_, height_, coding.pixels,
                                 SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, nullptr, nullptr, nullptr));
    if (!scaler_) fail("{}: frames of {} x {} cannot be converted to YUV", path_.string(), width_, height_);
    if (subsampled_) {
      const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
      sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    }
    frame_ = make_frame(coding.pixels, width_, height_);
    padded_.resize(static_cast<size_t>(width_) * static_cast<size_t>(height_) * 3);
  }

  PixelRounding rounding() const override { return PixelRounding::kTruncate; }

  void add_frame(const uint8_t* rgb) override {
    pad(rgb);
    check_ffmpeg(av_frame_make_writable(frame_.get()), path_, "encode a frame");
    const uint8_t* source[] = {padded_.data()};
    const int stride[] = {3 * width_};
    sws_scale(scaler_.get(), source, stride, 0, height_, frame_->data, frame_->linesize);
    frame_->pts = count_++;
    encoder_.encode(frame_.get(), sink());
  }

  void finish() override {
    if (count_ == 0) fail("{}: no frame was added, so there is nothing to write", path_.string());
    encoder_.encode(nullptr, sink());
    muxer_.finish();
  }

 private:
  Encoder::Sink sink() {
    return [this](AVPacket* packet) {
      packet->duration = 1;
      muxer_.write(encoder_, packet);
    };
  }

  // Repeats the last column and row of an odd size.
  void pad(const uint8_t* rgb) {
    const size_t row = static_cast<size_t>(format_.width) * 3, padded_row = static_cast<size_t>(width_) * 3;
    for (int y = 0; y < height_; ++y) {
      const uint8_t* from = rgb + static_cast<size_t>(std::min(y, format_.height - 1)) * row;
      uint8_t* to = padded_.data() + static_cast<size_t>(y) * padded_row;
      std::memcpy(to, from, row);
      if (padded_row > row) std::memcpy(to + row, from + row - 3, 3);
    }
  }

  const std::filesystem::path path_;
  const bool subsampled_;  // colours: both sizes are even
  const int width_, height_;
  Muxer muxer_;
  Encoder encoder_;
  FFmpegPtr<SwsContext> scaler_;
  FFmpegPtr<AVFrame> frame_;
  std::vector<uint8_t> padded_;  // [height_, width_, 3]
  int64_t count_ = 0;
};

}  // namespace

bool ffmpeg_writes(const std::string& extension) {
  return std::any_of(codings().begin(), codings().end(),
                     [&](const Coding& coding) { return coding.extension == extension; });
}

std::unique_ptr<FrameWriter> open_ffmpeg(const std::filesystem::path& path, const std::string& extension,
                                         const VideoFormat& format) {
  return std::make_unique<FFmpegWriter>(path, format, coding_of(path, extension, format));
}

}  // namespace zoetrope::io
