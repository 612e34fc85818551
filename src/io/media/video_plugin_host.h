// Videos by libzoetrope_video.so (video_plugin/video_plugin.h), with errors that name the file. The library is loaded
// by the first that needs it, from the folder of this code's program or library, or beside it as installed. Private to
// the module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "io/media/image_codecs.h"
#include "video_plugin/video_plugin.h"

namespace zoetrope::io {

// Loads the library; nothing where there is none, which who needs it is told.
void load_video_library();

struct EncodedFormat {
  std::string container, encoder;  // as FFmpeg names them
  std::string codec_tag;           // four letters; empty: the container's own
  VideoPluginPixels pixels = kVideoYuv420;
  int width = 0, height = 0;
  double fps = 0;
  int ticks = 0;  // of a second, in which times are counted; 0: in frames
  std::map<std::string, std::string> encoder_options, container_options, tags;
};

// A video file, written under a temporary name until finish().
class VideoEncoder {
 public:
  VideoEncoder(const std::filesystem::path& path, const EncodedFormat& format);
  VideoEncoder(const VideoEncoder&) = delete;
  VideoEncoder& operator=(const VideoEncoder&) = delete;

  // RGB [height, width, 3], or indices [height, width] with colours [256] as 0xAARRGGBB.
  void add_frame(const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration);
  void finish();

 private:
  void check(int code, const VideoPluginError& error) const;

  AtomicFile file_;
  std::unique_ptr<void, void (*)(void*)> writer_;
};

class VideoDecoder {
 public:
  explicit VideoDecoder(std::filesystem::path path);

  double fps() const;  // 0 where the file does not say
  std::map<std::string, std::string> metadata() const;
  Tensor next();                                     // [H, W, 3] U8, upright; empty at the end
  bool hdr() const { return hdr_; }                  // of the last of them
  bool transparent() const { return transparent_; }  // one of them has an alpha that is dropped
  // Of the last of them, width to height as they are shown: "16:15"; empty: pixels are square.
  const std::string& pixel_aspect() const { return pixel_aspect_; }
  // Of the frames that next() has not returned; `damage`: why there are no more, empty at the file's end.
  int64_t count_rest(std::string& damage);

 private:
  std::filesystem::path path_;
  std::unique_ptr<void, void (*)(void*)> reader_;
  bool hdr_ = false, transparent_ = false;
  std::string pixel_aspect_;
};

}  // namespace zoetrope::io
