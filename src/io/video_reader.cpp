#include "io/video_reader.h"

#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/ffmpeg.h"

namespace zoetrope::io {

namespace {

constexpr int64_t kMaxPixels = int64_t{16384} * 16384;

class Decoder {
 public:
  explicit Decoder(std::filesystem::path path) : path_(std::move(path)) {
    silence_ffmpeg();
    std::error_code ignored;
    if (!std::filesystem::exists(path_, ignored)) fail("{}: no such file", path_.string());
    if (!std::filesystem::is_regular_file(path_, ignored)) fail("{}: is not a regular file", path_.string());
    AVDictionary* options = nullptr;
    av_dict_set(&options, "protocol_whitelist", "file", 0);  // a playlist must not reach the network
    const int code = avformat_open_input(&container_, ("file:" + path_.string()).c_str(), nullptr, &options);
    av_dict_free(&options);
    check_ffmpeg(code, path_, "be read as a picture or video");
    try {
      open_codec();
    } catch (...) {
      avformat_close_input(&container_);
      throw;
    }
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { avformat_close_input(&container_); }

  // False at the end.
  bool next(AVFrame* frame) {
    for (;;) {
      const int received = avcodec_receive_frame(context_.get(), frame);
      if (received >= 0) return true;
      if (received == AVERROR_EOF) return false;
      if (received != AVERROR(EAGAIN)) check_ffmpeg(received, path_, "be decoded");
      const int read = av_read_frame(container_, packet_.get());
      if (read == AVERROR_EOF) {
        check_ffmpeg(avcodec_send_packet(context_.get(), nullptr), path_, "be decoded");
        continue;
      }
      check_ffmpeg(read, path_, "be read to its end");
      const int sent = packet_->stream_index == stream_->index ? avcodec_send_packet(context_.get(), packet_.get()) : 0;
      av_packet_unref(packet_.get());
      check_ffmpeg(sent, path_, "be decoded");
    }
  }

  double fps() const { return stream_->avg_frame_rate.den == 0 ? 0 : av_q2d(stream_->avg_frame_rate); }
  const AVDictionary* metadata() const { return container_->metadata; }

 private:
  void open_codec() {
    check_ffmpeg(avformat_find_stream_info(container_, nullptr), path_, "be read as a picture or video");
    const AVCodec* codec = nullptr;
    const int index = check_ffmpeg(av_find_best_stream(container_, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0), path_,
                                   "be read as a picture or video");
    stream_ = container_->streams[index];
    context_.reset(avcodec_alloc_context3(codec));
    packet_.reset(av_packet_alloc());
    if (!context_ || !packet_) fail("{}: out of memory for the decoder", path_.string());
    check_ffmpeg(avcodec_parameters_to_context(context_.get(), stream_->codecpar), path_, "be decoded");
    context_->max_pixels = kMaxPixels;
    context_->err_recognition = AV_EF_CAREFUL | AV_EF_EXPLODE | AV_EF_CRCCHECK;  // broken is an error, not grey blocks
    check_ffmpeg(avcodec_open2(context_.get(), codec, nullptr), path_, "be decoded");
  }

  std::filesystem::path path_;
  AVFormatContext* container_ = nullptr;
  AVStream* stream_ = nullptr;
  FFmpegPtr<AVCodecContext> context_;
  FFmpegPtr<AVPacket> packet_;
};

// To packed RGB by the matrix and range that the frame states (JPEG: full range; untagged video: BT.601).
std::vector<uint8_t> to_rgb(const AVFrame& frame, const std::filesystem::path& path) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const FFmpegPtr<SwsContext> scaler(
      sws_getContext(frame.width, frame.height, format, frame.width, frame.height, AV_PIX_FMT_RGB24,
                     SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr));
  if (!scaler) fail("{}: its pixel format cannot be converted to RGB", path.string());
  const int* matrix = sws_getCoefficients(frame.colorspace == AVCOL_SPC_BT709 ? SWS_CS_ITU709 : SWS_CS_DEFAULT);
  const int full_range = frame.color_range == AVCOL_RANGE_JPEG || format == AV_PIX_FMT_YUVJ420P ||
                         format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ444P;
  sws_setColorspaceDetails(scaler.get(), matrix, full_range, matrix, 1, 0, 1 << 16, 1 << 16);
  // swscale writes whole vectors: rows of its own, then packed.
  const FFmpegPtr<AVFrame> rgb = make_frame(AV_PIX_FMT_RGB24, frame.width, frame.height);
  sws_scale(scaler.get(), frame.data, frame.linesize, 0, frame.height, rgb->data, rgb->linesize);
  const int row = 3 * frame.width;
  std::vector<uint8_t> packed(static_cast<size_t>(row) * static_cast<size_t>(frame.height));
  av_image_copy_plane(packed.data(), row, rgb->data[0], rgb->linesize[0], row, frame.height);
  return packed;
}

}  // namespace

Clip read_clip(const std::filesystem::path& path, int64_t max_frames) {
  ZT_CHECK(max_frames > 0);
  Decoder decoder(path);
  const FFmpegPtr<AVFrame> frame(av_frame_alloc());
  std::vector<std::vector<uint8_t>> frames;
  int width = 0, height = 0;
  while (static_cast<int64_t>(frames.size()) < max_frames && decoder.next(frame.get())) {
    if (frames.empty()) {
      width = frame->width;
      height = frame->height;
    } else if (frame->width != width || frame->height != height) {
      fail("{}: frame {} is {} x {}, but the first is {} x {}; all must have one size", path.string(), frames.size(),
           frame->width, frame->height, width, height);
    }
    frames.push_back(to_rgb(*frame, path));
    av_frame_unref(frame.get());
  }
  if (frames.empty()) fail("{}: holds no frame", path.string());

  Clip clip;
  clip.fps = decoder.fps();
  for (const AVDictionaryEntry* tag = nullptr;
       (tag = av_dict_get(decoder.metadata(), "", tag, AV_DICT_IGNORE_SUFFIX));) {
    clip.metadata[tag->key] = tag->value;
  }
  clip.frames = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(frames.size()), height, width, 3});
  uint8_t* out = clip.frames.data<uint8_t>();
  for (const auto& pixels : frames) {
    std::memcpy(out, pixels.data(), pixels.size());
    out += pixels.size();
  }
  return clip;
}

Tensor read_image(const std::filesystem::path& path) {
  const Clip clip = read_clip(path, 1);
  Tensor image = Tensor::uninitialized(DType::kU8, {clip.frames.extent(1), clip.frames.extent(2), 3});
  std::memcpy(image.view().raw(), clip.frames.view().raw(), image.view().bytes());
  return image;
}

}  // namespace zoetrope::io
