#include "io/image.h"

#include <climits>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "io/ffmpeg.h"
#include "io/image_header.h"
#include "io/image_planes.h"

namespace zoetrope::io {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;  // 100 megapixels of four 16-bit values are less

// The one frame of a file: both formats are decoded from one packet, without a container around them.
FFmpegPtr<AVFrame> decode_picture(const std::string& bytes, ImageKind kind, const std::filesystem::path& path) {
  silence_ffmpeg();
  const char* name = kind == ImageKind::kPng ? "png" : "mjpeg";
  const AVCodec* codec = avcodec_find_decoder_by_name(name);
  if (codec == nullptr) fail("{}: the FFmpeg libraries lack the decoder {}", path.string(), name);
  const FFmpegPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  const FFmpegPtr<AVPacket> packet(av_packet_alloc());
  FFmpegPtr<AVFrame> frame(av_frame_alloc());
  static_assert(kMaxFileBytes <= INT_MAX);
  if (!context || !packet || !frame || av_new_packet(packet.get(), static_cast<int>(bytes.size())) < 0) {
    fail("{}: out of memory for the picture", path.string());
  }
  std::memcpy(packet->data, bytes.data(), bytes.size());
  context->max_pixels = kMaxImagePixels;
  context->thread_count = 1;
  context->idct_algo = FF_IDCT_FAAN;  // of the transforms there are the one that differs least from libjpeg's
  context->err_recognition = AV_EF_CAREFUL | AV_EF_EXPLODE | AV_EF_CRCCHECK;  // broken is an error, not grey blocks
  check_ffmpeg(avcodec_open2(context.get(), codec, nullptr), path, "be decoded");
  check_ffmpeg(avcodec_send_packet(context.get(), packet.get()), path, "be decoded");
  check_ffmpeg(avcodec_send_packet(context.get(), nullptr), path, "be decoded");
  check_ffmpeg(avcodec_receive_frame(context.get(), frame.get()), path, "be decoded");
  return frame;
}

}  // namespace

Tensor read_image(const std::filesystem::path& path) {
  const std::string bytes = read_file(path, kMaxFileBytes);
  const ImageHeader header = read_image_header(bytes, path);
  const FFmpegPtr<AVFrame> frame = decode_picture(bytes, header.kind, path);
  return upright(planes_to_rgb(*frame, path), header.orientation);
}

}  // namespace zoetrope::io
