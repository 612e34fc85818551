#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/ffmpeg.h"
#include "io/video_writers.h"

namespace zoetrope::io {

namespace {

// x264's scale of quality: 18 passes for visually lossless, 23 is its default.
constexpr const char* kQuality = "17";

class Mp4Writer final : public FrameWriter {
 public:
  Mp4Writer(const std::filesystem::path& path, const VideoFormat& format)
      : FrameWriter(format),
        path_(path),
        width_(format.width + format.width % 2),
        height_(format.height + format.height % 2),
        muxer_("mp4", path),
        encoder_("libx264", path) {
    encoder_->width = width_;
    encoder_->height = height_;
    encoder_->pix_fmt = AV_PIX_FMT_YUV420P;
    encoder_->framerate = av_d2q(format.fps, 1001000);  // exact for 24000/1001 and the like
    encoder_->time_base = av_inv_q(encoder_->framerate);
    encoder_->colorspace = AVCOL_SPC_BT709;
    encoder_->color_primaries = AVCOL_PRI_BT709;
    encoder_->color_trc = AVCOL_TRC_BT709;
    encoder_->color_range = AVCOL_RANGE_MPEG;
    if (muxer_.needs_global_header()) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    encoder_.set_option("crf", kQuality);
    encoder_.set_option("preset", "medium");
    encoder_.open();

    muxer_.set_tags(format.metadata);
    AVDictionary* options = nullptr;
    // Tags of any name; and the index in front, so that a browser can start before it has the whole file.
    av_dict_set(&options, "movflags", "use_metadata_tags+faststart", 0);
    muxer_.start(encoder_, &options);

    scaler_.reset(sws_getContext(width_, height_, AV_PIX_FMT_RGB24, width_, height_, AV_PIX_FMT_YUV420P,
                                 SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, nullptr, nullptr, nullptr));
    if (!scaler_) fail("{}: frames of {} x {} cannot be converted to YUV", path_.string(), width_, height_);
    const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
    sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    frame_ = make_frame(AV_PIX_FMT_YUV420P, width_, height_);
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
  const int width_, height_;  // even
  Muxer muxer_;
  Encoder encoder_;
  FFmpegPtr<SwsContext> scaler_;
  FFmpegPtr<AVFrame> frame_;
  std::vector<uint8_t> padded_;  // [height_, width_, 3]
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<FrameWriter> open_mp4(const std::filesystem::path& path, const VideoFormat& format) {
  return std::make_unique<Mp4Writer>(path, format);
}

}  // namespace zoetrope::io
