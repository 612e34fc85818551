// The frames of a video file, decoded to RGB.
#pragma once

#include <cstdint>

#include "video_plugin/ffmpeg.h"
#include "video_plugin/video_plugin.h"

namespace zoetrope::video_plugin {

class Reader {
 public:
  Reader(const char* file, int64_t most_pixels);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader();

  double fps() const;
  bool tag(int index, const char** key, const char** value) const;
  bool next_frame(VideoPluginFrame& frame);  // false at the end
  void count_rest(int64_t& count);           // adds the frames before the end, or before what it throws

 private:
  void open_codec(int64_t most_pixels);
  bool decode();  // the next frame into frame_
  void check_whole() const;
  void convert();
  void get_matrix(VideoPluginFrame& frame) const;

  AVFormatContext* container_ = nullptr;
  AVStream* stream_ = nullptr;
  FFmpegPtr<AVCodecContext> decoder_;
  FFmpegPtr<AVPacket> packet_;
  FFmpegPtr<AVFrame> frame_, rgb_;
};

}  // namespace zoetrope::video_plugin
