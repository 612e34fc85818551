// What the library uses of FFmpeg, with ownership, and its errors as exceptions within the library.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <stdexcept>
#include <string>

namespace zoetrope::video_plugin {

struct FreeFFmpeg {
  void operator()(AVCodecContext* context) const { avcodec_free_context(&context); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};
template <typename T>
using FFmpegPtr = std::unique_ptr<T, FreeFFmpeg>;

// "cannot DO: reason" where code is negative; returns it otherwise.
int check(int code, const char* doing);

// A frame with buffers of its own.
FFmpegPtr<AVFrame> make_frame(AVPixelFormat format, int width, int height);

}  // namespace zoetrope::video_plugin
