#include "video_plugin/ffmpeg.h"

namespace zoetrope::video_plugin {

int check(int code, const char* doing) {
  if (code >= 0) return code;
  char reason[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, reason, sizeof reason);
  throw std::runtime_error("cannot " + std::string(doing) + ": " + reason);
}

FFmpegPtr<AVFrame> make_frame(AVPixelFormat format, int width, int height) {
  FFmpegPtr<AVFrame> frame(av_frame_alloc());
  if (!frame) throw std::bad_alloc();
  frame->format = format;
  frame->width = width;
  frame->height = height;
  if (av_frame_get_buffer(frame.get(), 0) < 0) throw std::bad_alloc();
  return frame;
}

}  // namespace zoetrope::video_plugin
