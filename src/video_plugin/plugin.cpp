// The functions of video_plugin.h around the classes that do the work.
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "video_plugin/reader.h"
#include "video_plugin/video_plugin.h"
#include "video_plugin/writer.h"

namespace zoetrope::video_plugin {
namespace {

// What `run` returns, or `failed` with the error's text: no exception leaves the library.
template <typename Result, typename Run>
Result guarded(VideoPluginError* error, Result failed, Run&& run) {
  try {
    return std::forward<Run>(run)();
  } catch (const std::bad_alloc&) {
    std::snprintf(error->text, sizeof error->text, "not enough memory for its frames");
  } catch (const std::exception& thrown) {
    std::snprintf(error->text, sizeof error->text, "%s", thrown.what());
  }
  return failed;
}

constexpr VideoPlugin kPlugin{
    .open_writer = [](const char* file, const VideoPluginFormat* format, VideoPluginError* error) -> void* {
      return guarded(error, static_cast<void*>(nullptr), [&]() -> void* { return new Writer(file, *format); });
    },
    .add_frame =
        [](void* writer, const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration,
           VideoPluginError* error) {
          return guarded(error, -1, [&] {
            static_cast<Writer*>(writer)->add_frame(pixels, colours, time, duration);
            return 0;
          });
        },
    .finish =
        [](void* writer, VideoPluginError* error) {
          return guarded(error, -1, [&] {
            static_cast<Writer*>(writer)->finish();
            return 0;
          });
        },
    .close_writer = [](void* writer) { delete static_cast<Writer*>(writer); },
    .open_reader = [](const char* file, int64_t most_pixels, VideoPluginError* error) -> void* {
      return guarded(error, static_cast<void*>(nullptr), [&]() -> void* { return new Reader(file, most_pixels); });
    },
    .fps = [](void* reader) { return static_cast<Reader*>(reader)->fps(); },
    .tag = [](void* reader, int index, const char** key,
              const char** value) { return static_cast<Reader*>(reader)->tag(index, key, value) ? 1 : 0; },
    .next_frame =
        [](void* reader, VideoPluginFrame* frame, VideoPluginError* error) {
          return guarded(error, -1, [&] { return static_cast<Reader*>(reader)->next_frame(*frame) ? 1 : 0; });
        },
    .count_rest =
        [](void* reader, VideoPluginError* damage) {
          int64_t count = 0;
          guarded(damage, -1, [&] {
            static_cast<Reader*>(reader)->count_rest(count);
            return 0;
          });
          return count;
        },
    .close_reader = [](void* reader) { delete static_cast<Reader*>(reader); }};

}  // namespace
}  // namespace zoetrope::video_plugin

const VideoPlugin* zoetrope_video_plugin(int version) {
  if (version != kVideoPluginVersion) return nullptr;
  av_log_set_level(AV_LOG_QUIET);  // the libraries would report to stderr on their own
  return &zoetrope::video_plugin::kPlugin;
}
