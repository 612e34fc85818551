#include "io/ffmpeg.h"

#include <mutex>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {

void silence_ffmpeg() {
  static std::once_flag once;
  std::call_once(once, [] { av_log_set_level(AV_LOG_QUIET); });
}

int check_ffmpeg(int code, const std::filesystem::path& file, const char* doing) {
  if (code >= 0) return code;
  char reason[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, reason, sizeof reason);
  fail("{}: cannot {}: {}", file.string(), doing, reason);
}

FFmpegPtr<AVFrame> make_frame(AVPixelFormat format, int width, int height) {
  FFmpegPtr<AVFrame> frame(av_frame_alloc());
  if (!frame) fail("out of memory for a frame of {} x {}", width, height);
  frame->format = format;
  frame->width = width;
  frame->height = height;
  if (av_frame_get_buffer(frame.get(), 0) < 0) fail("out of memory for a frame of {} x {}", width, height);
  return frame;
}

Encoder::Encoder(const char* codec_name, std::filesystem::path file) : file_(std::move(file)) {
  silence_ffmpeg();
  codec_ = avcodec_find_encoder_by_name(codec_name);
  if (codec_ == nullptr) fail("{}: the FFmpeg libraries lack the encoder {}", file_.string(), codec_name);
  context_.reset(avcodec_alloc_context3(codec_));
  packet_.reset(av_packet_alloc());
  if (!context_ || !packet_) fail("{}: out of memory for the encoder {}", file_.string(), codec_name);
}

void Encoder::set_option(const char* key, const char* value) {
  check_ffmpeg(av_opt_set(context_->priv_data, key, value, 0), file_, "set an encoder option");
}

void Encoder::open() { check_ffmpeg(avcodec_open2(context_.get(), codec_, nullptr), file_, "open the encoder"); }

void Encoder::encode(const AVFrame* frame, const Sink& sink) {
  check_ffmpeg(avcodec_send_frame(context_.get(), frame), file_, "encode a frame");
  for (;;) {
    const int code = avcodec_receive_packet(context_.get(), packet_.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
    check_ffmpeg(code, file_, "encode a frame");
    try {
      sink(packet_.get());
    } catch (...) {
      av_packet_unref(packet_.get());
      throw;
    }
    av_packet_unref(packet_.get());
  }
}

Muxer::Muxer(const char* container, const std::filesystem::path& path) : file_(path) {
  const std::string url = "file:" + file_.temporary().string();
  check_ffmpeg(avformat_alloc_output_context2(&context_, nullptr, container, url.c_str()), path, "make the container");
  const int code = avio_open(&context_->pb, url.c_str(), AVIO_FLAG_WRITE);
  if (code < 0) {
    avformat_free_context(context_);
    check(code, "be written");
  }
  try {
    file_.check_not_stopped();  // avio_open() creates a deleted file again
  } catch (...) {
    close();
    throw;
  }
}

Muxer::~Muxer() { close(); }

void Muxer::close() {
  if (context_->pb != nullptr) avio_closep(&context_->pb);
  avformat_free_context(context_);
}

bool Muxer::needs_global_header() const { return (context_->oformat->flags & AVFMT_GLOBALHEADER) != 0; }

void Muxer::set_tags(const std::map<std::string, std::string>& tags) {
  for (const auto& [key, value] : tags) {
    check(av_dict_set(&context_->metadata, key.c_str(), value.c_str(), 0), "store the metadata");
  }
}

void Muxer::start(const Encoder& encoder, AVDictionary** options) {
  stream_ = avformat_new_stream(context_, nullptr);
  if (stream_ == nullptr) fail("{}: out of memory for the stream", file_.path().string());
  check(avcodec_parameters_from_context(stream_->codecpar, encoder.context()), "be set up");
  stream_->time_base = encoder->time_base;
  stream_->avg_frame_rate = encoder->framerate;
  const int code = avformat_write_header(context_, options);
  av_dict_free(options);
  check(code, "be written");
  check_output("be written");
}

void Muxer::write(const Encoder& encoder, AVPacket* packet) {
  av_packet_rescale_ts(packet, encoder->time_base, stream_->time_base);
  packet->stream_index = stream_->index;
  check(av_interleaved_write_frame(context_, packet), "be written");
  check_output("be written");
}

// Where the file was removed because the run is to end, that is what went wrong.
void Muxer::check(int code, const char* doing) const {
  if (code < 0) file_.check_not_stopped();
  check_ffmpeg(code, file_.path(), doing);
}

// Muxers do not pass on every error of their output.
void Muxer::check_output(const char* doing) const { check(context_->pb->error, doing); }

void Muxer::finish() {
  check(av_write_trailer(context_), "be written");
  avio_flush(context_->pb);
  check_output("be written");
  check(avio_closep(&context_->pb), "be written");
  file_.commit();
}

}  // namespace zoetrope::io
