// A container file with one stream of frames, encoded.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "video_plugin/ffmpeg.h"
#include "video_plugin/video_plugin.h"

namespace zoetrope::video_plugin {

class Writer {
 public:
  Writer(const char* file, const VideoPluginFormat& format);  // writes the header
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer();

  void add_frame(const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration);
  void finish();  // the trailer; the file is closed

 private:
  void open_encoder(const VideoPluginFormat& format);
  void open_container(const char* file, const VideoPluginFormat& format);
  void start(const VideoPluginFormat& format);
  void set_scaler();
  FFmpegPtr<AVFrame> indexed_frame(const uint8_t* indices, const uint32_t* colours) const;
  void scale(const uint8_t* rgb);
  void pad(const uint8_t* rgb);
  void encode(const AVFrame* frame);  // null flushes
  void check_output(const char* doing) const;
  void close();

  const int given_width_, given_height_;
  const VideoPluginPixels pixels_;
  const int width_, height_;  // of the stream
  AVFormatContext* container_ = nullptr;
  AVStream* stream_ = nullptr;
  FFmpegPtr<AVCodecContext> encoder_;
  FFmpegPtr<AVPacket> packet_;
  FFmpegPtr<SwsContext> scaler_;
  FFmpegPtr<AVFrame> frame_;
  std::vector<uint8_t> padded_;    // [height_, width_, 3]
  std::deque<int64_t> durations_;  // of frames whose packets have not come
};

}  // namespace zoetrope::video_plugin
