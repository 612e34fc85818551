// What this module uses of FFmpeg, with ownership: contexts that free themselves, one encoder, one container with one
// stream. Private to the module; no other module sees FFmpeg.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
}

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/atomic_file.h"

namespace zoetrope::io {

struct FreeFFmpeg {
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};
template <typename T>
using FFmpegPtr = std::unique_ptr<T, FreeFFmpeg>;

// The libraries report to stderr on their own; what matters reaches the caller as an Error.
void silence_ffmpeg();

// Error "FILE: cannot DO: reason" where code is negative; returns it otherwise.
int check_ffmpeg(int code, const std::filesystem::path& file, const char* doing);

// A frame with buffers of its own.
FFmpegPtr<AVFrame> make_frame(AVPixelFormat format, int width, int height);

// One codec, set up and then fed.
class Encoder {
 public:
  using Sink = std::function<void(AVPacket*)>;

  // `file` is for errors. The context may be changed until open().
  Encoder(const char* codec_name, std::filesystem::path file);
  AVCodecContext* operator->() const { return context_.get(); }
  AVCodecContext* context() const { return context_.get(); }
  void set_option(const char* key, const char* value);  // of the codec, "crf" and the like
  void open();
  void encode(const AVFrame* frame, const Sink& sink);  // a null frame flushes

 private:
  std::filesystem::path file_;
  const AVCodec* codec_ = nullptr;
  FFmpegPtr<AVCodecContext> context_;
  FFmpegPtr<AVPacket> packet_;
};

// A container file with one stream, written under a temporary name.
class Muxer {
 public:
  Muxer(const char* container, const std::filesystem::path& path);
  Muxer(const Muxer&) = delete;
  Muxer& operator=(const Muxer&) = delete;
  ~Muxer();

  bool needs_global_header() const;
  void set_tags(const std::map<std::string, std::string>& tags);
  void start(const Encoder& encoder, AVDictionary** options);  // writes the header
  void write(const Encoder& encoder, AVPacket* packet);
  void finish();  // trailer, then the final name

 private:
  void check(int code, const char* doing) const;
  void check_output(const char* doing) const;
  void close();

  AtomicFile file_;
  AVFormatContext* context_ = nullptr;
  AVStream* stream_ = nullptr;
};

}  // namespace zoetrope::io
