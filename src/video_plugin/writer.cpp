#include "video_plugin/writer.h"

#include <algorithm>
#include <cstring>

namespace zoetrope::video_plugin {

namespace {

AVPixelFormat pixel_format(VideoPluginPixels pixels) {
  switch (pixels) {
    case kVideoYuv420:
      return AV_PIX_FMT_YUV420P;
    case kVideoRgb32:
      return AV_PIX_FMT_RGB32;
    case kVideoPalette:
      return AV_PIX_FMT_PAL8;
  }
  throw std::runtime_error("cannot be written: unknown kind of pixels");
}

}  // namespace

Writer::Writer(const char* file, const VideoPluginFormat& format)
    : given_width_(format.width),
      given_height_(format.height),
      pixels_(format.pixels),
      width_(format.width + (format.pixels == kVideoYuv420 ? format.width % 2 : 0)),
      height_(format.height + (format.pixels == kVideoYuv420 ? format.height % 2 : 0)) {
  try {
    open_container(file, format);
    open_encoder(format);
    start(format);
    if (pixels_ != kVideoPalette) set_scaler();
  } catch (...) {
    close();
    throw;
  }
}

Writer::~Writer() { close(); }

void Writer::close() {
  if (container_ == nullptr) return;
  if (container_->pb != nullptr) avio_closep(&container_->pb);
  avformat_free_context(container_);
  container_ = nullptr;
}

void Writer::open_container(const char* file, const VideoPluginFormat& format) {
  const std::string url = "file:" + std::string(file);
  check(avformat_alloc_output_context2(&container_, nullptr, format.container, url.c_str()), "make the container");
  container_->flags |= AVFMT_FLAG_BITEXACT;  // no random identifiers, no versions of FFmpeg
  check(avio_open(&container_->pb, url.c_str(), AVIO_FLAG_WRITE), "be written");
}

void Writer::open_encoder(const VideoPluginFormat& format) {
  const AVCodec* codec = avcodec_find_encoder_by_name(format.encoder);
  if (codec == nullptr)
    throw std::runtime_error("the FFmpeg libraries lack the encoder " + std::string(format.encoder));
  encoder_.reset(avcodec_alloc_context3(codec));
  packet_.reset(av_packet_alloc());
  if (!encoder_ || !packet_) throw std::bad_alloc();
  encoder_->width = width_;
  encoder_->height = height_;
  encoder_->pix_fmt = pixel_format(pixels_);
  encoder_->framerate = av_d2q(format.fps, format.ticks > 0 ? 1000 : 1001000);  // exact for 24000/1001 and the like
  encoder_->time_base = format.ticks > 0 ? AVRational{1, format.ticks} : av_inv_q(encoder_->framerate);
  if (pixels_ == kVideoYuv420) {
    encoder_->colorspace = AVCOL_SPC_BT709;
    encoder_->color_primaries = AVCOL_PRI_BT709;
    encoder_->color_trc = AVCOL_TRC_BT709;
    encoder_->color_range = AVCOL_RANGE_MPEG;
  }
  if ((container_->oformat->flags & AVFMT_GLOBALHEADER) != 0) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (const char* tag = format.codec_tag) {
    encoder_->codec_tag = MKTAG(tag[0], tag[1], tag[2], static_cast<unsigned char>(tag[3]));
  }
  for (const char* const* option = format.encoder_options; *option != nullptr; option += 2) {
    check(av_opt_set(encoder_->priv_data, option[0], option[1], 0), "set an encoder option");
  }
  check(avcodec_open2(encoder_.get(), codec, nullptr), "open the encoder");
}

void Writer::start(const VideoPluginFormat& format) {
  for (const char* const* tag = format.tags; *tag != nullptr; tag += 2) {
    check(av_dict_set(&container_->metadata, tag[0], tag[1], 0), "store the metadata");
  }
  stream_ = avformat_new_stream(container_, nullptr);
  if (stream_ == nullptr) throw std::bad_alloc();
  check(avcodec_parameters_from_context(stream_->codecpar, encoder_.get()), "be set up");
  stream_->time_base = encoder_->time_base;
  stream_->avg_frame_rate = encoder_->framerate;
  AVDictionary* options = nullptr;
  for (const char* const* option = format.container_options; *option != nullptr; option += 2) {
    av_dict_set(&options, option[0], option[1], 0);
  }
  const int code = avformat_write_header(container_, &options);
  av_dict_free(&options);
  check(code, "be written");
  check_output("be written");
}

void Writer::set_scaler() {
  const AVPixelFormat target = encoder_->pix_fmt;
  scaler_.reset(sws_getContext(width_, height_, AV_PIX_FMT_RGB24, width_, height_, target,
                               SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, nullptr, nullptr, nullptr));
  if (!scaler_) throw std::runtime_error("its frames cannot be converted to the encoder's colours");
  if (pixels_ == kVideoYuv420) {
    const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
    sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
  }
  frame_ = make_frame(target, width_, height_);
  constexpr size_t kVector = 64;  // swscale reads whole vectors, beyond the last pixel too
  padded_.resize(static_cast<size_t>(width_) * static_cast<size_t>(height_) * 3 + kVector);
}

void Writer::add_frame(const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration) {
  // Indexed frames are created each time: the encoder keeps the last one to store differences only.
  if (pixels_ == kVideoPalette) frame_ = indexed_frame(pixels, colours);
  else scale(pixels);
  frame_->pts = time;
  durations_.push_back(duration);
  encode(frame_.get());
}

FFmpegPtr<AVFrame> Writer::indexed_frame(const uint8_t* indices, const uint32_t* colours) const {
  FFmpegPtr<AVFrame> frame = make_frame(AV_PIX_FMT_PAL8, width_, height_);
  std::memcpy(frame->data[1], colours, AVPALETTE_SIZE);
  av_image_copy_plane(frame->data[0], frame->linesize[0], indices, width_, width_, height_);
  return frame;
}

void Writer::scale(const uint8_t* rgb) {
  pad(rgb);
  check(av_frame_make_writable(frame_.get()), "encode a frame");
  const uint8_t* source[] = {padded_.data()};
  const int stride[] = {3 * width_};
  sws_scale(scaler_.get(), source, stride, 0, height_, frame_->data, frame_->linesize);
}

void Writer::pad(const uint8_t* rgb) {
  const size_t row = static_cast<size_t>(given_width_) * 3, padded_row = static_cast<size_t>(width_) * 3;
  for (int y = 0; y < height_; ++y) {
    const uint8_t* from = rgb + static_cast<size_t>(std::min(y, given_height_ - 1)) * row;
    uint8_t* to = padded_.data() + static_cast<size_t>(y) * padded_row;
    std::memcpy(to, from, row);
    if (padded_row > row) std::memcpy(to + row, from + row - 3, 3);
  }
}

void Writer::encode(const AVFrame* frame) {
  check(avcodec_send_frame(encoder_.get(), frame), "encode a frame");
  for (;;) {
    const int code = avcodec_receive_packet(encoder_.get(), packet_.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
    check(code, "encode a frame");
    if (!durations_.empty()) {
      packet_->duration = durations_.front();
      durations_.pop_front();
    }
    av_packet_rescale_ts(packet_.get(), encoder_->time_base, stream_->time_base);
    packet_->stream_index = stream_->index;
    const int written = av_interleaved_write_frame(container_, packet_.get());
    av_packet_unref(packet_.get());
    check(written, "be written");
    check_output("be written");
  }
}

// Muxers do not pass on every error of their output.
void Writer::check_output(const char* doing) const { check(container_->pb->error, doing); }

void Writer::finish() {
  encode(nullptr);
  check(av_write_trailer(container_), "be written");
  avio_flush(container_->pb);
  check_output("be written");
  check(avio_closep(&container_->pb), "be written");
}

}  // namespace zoetrope::video_plugin
