// The interface of libzoetrope_video.so, which reads and writes videos by FFmpeg's libraries. Debian's are built with
// parts under the GPL, so this library stands alone: the program loads it when a video is read or written, and
// everything else runs, and may be passed on, without it.
//
// The interface is plain data and functions, no C++: the library shares no code or state with its caller. Errors are
// the part of a sentence that follows the name of the file.
#pragma once

#include <cstdint>

extern "C" {

constexpr int kVideoPluginVersion = 4;

struct VideoPluginError {
  char text[1000];
};

enum VideoPluginPixels : int32_t {
  kVideoYuv420,   // written as YUV 4:2:0, BT.709, limited range; an odd size is made even by repeating the last column
                  // or row
  kVideoRgb32,    // written as RGB with an alpha of 255
  kVideoPalette,  // frames are bytes, indices into 256 colours
};

struct VideoPluginFormat {
  const char* container;  // "mp4", "libx264": as FFmpeg names them
  const char* encoder;
  const char* codec_tag;  // four letters, or null for the container's own
  VideoPluginPixels pixels;
  int32_t width, height;
  double fps;
  int32_t ticks;  // times are counted in 1 / ticks of a second; 0: in frames
  // Keys and values in turn, null at the end.
  const char* const* encoder_options;
  const char* const* container_options;
  const char* const* tags;
};

struct VideoPluginFrame {
  const uint8_t* rgb;  // until the next call
  int64_t stride;      // bytes of a row
  int32_t width, height;
  int32_t turned;                     // 1 where the display matrix [9] is set
  int32_t matrix[9];                  // as FFmpeg has it
  int32_t hdr;                        // 1 where the values are those of PQ or HLG (ITU-R BT.2100)
  int32_t transparent;                // 1 where the alpha, which is dropped, is less than opaque
  int32_t pixel_width, pixel_height;  // of one pixel as it is to be shown, in any unit; 0 where the file does not say
};

// A function that returns a pointer or an int has failed with null or a negative number, and set the error.
struct VideoPlugin {
  // Creates the file, or replaces it. Any call may fail; close() frees the writer, and completes nothing.
  void* (*open_writer)(const char* file, const VideoPluginFormat*, VideoPluginError*);
  // pixels: RGB [height, width, 3], or indices [height, width] with colours [256] as 0xAARRGGBB.
  int (*add_frame)(void* writer, const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration,
                   VideoPluginError*);
  int (*finish)(void* writer, VideoPluginError*);
  void (*close_writer)(void* writer);

  void* (*open_reader)(const char* file, int64_t most_pixels, VideoPluginError*);
  double (*fps)(void* reader);  // 0 where the file does not say
  // The key and value of a tag, false after the last.
  int (*tag)(void* reader, int index, const char** key, const char** value);
  int (*next_frame)(void* reader, VideoPluginFrame*, VideoPluginError*);  // 1; 0 at the end
  // Counts the frames that next_frame() has not returned. Work on pixels is skipped. Where damage ends the count, it is
  // in `damage`, whose text is empty otherwise.
  int64_t (*count_rest)(void* reader, VideoPluginError* damage);
  void (*close_reader)(void* reader);
};

// The only symbol of the library; null for another version than it has.
__attribute__((visibility("default"))) const VideoPlugin* zoetrope_video_plugin(int version);
}
