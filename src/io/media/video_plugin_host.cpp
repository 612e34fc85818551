#include "io/media/video_plugin_host.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"

namespace zoetrope::io {

namespace {

constexpr const char* kLibrary = "libzoetrope_video.so";

// Where the library is: beside the library that holds this code (as built, or in a package for Python) or in zoetrope/
// there (as installed); else in the libraries' folder that belongs to the program's, likewise.
std::vector<std::filesystem::path> places() {
  const std::filesystem::path library = own_library();
  if (!library.empty()) return {library.parent_path(), library.parent_path() / "zoetrope"};
  const std::filesystem::path above = own_program().parent_path().parent_path();
  return {above / "lib", above / ZOETROPE_LIBRARY_FOLDER / "zoetrope"};
}

// Null, and `reason` says why, where there is none.
const VideoPlugin* load(std::string& reason) {
  std::vector<std::string> looked;
  for (const std::filesystem::path& folder : places()) {
    const std::filesystem::path file = folder / kLibrary;
    if (!is_there(file)) {
      looked.push_back(folder.string());
      continue;
    }
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason = fmt::format("{} cannot be loaded: {}", file.string(), dlerror());
      return nullptr;
    }
    const auto get = reinterpret_cast<decltype(&zoetrope_video_plugin)>(dlsym(library, "zoetrope_video_plugin"));
    const VideoPlugin* plugin = get == nullptr ? nullptr : get(kVideoPluginVersion);
    if (plugin == nullptr) reason = fmt::format("{} is of another version of zoetrope", file.string());
    return plugin;  // stays loaded
  }
  reason = fmt::format("there is no {} in {}; it comes with the package zoetrope-video", kLibrary,
                       fmt::join(looked, " or "));
  return nullptr;
}

struct Loaded {
  std::string reason;
  const VideoPlugin* plugin = load(reason);
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

const VideoPlugin& plugin_for(const std::filesystem::path& path) {
  const Loaded& library = loaded();
  if (library.plugin == nullptr) {
    fail("{}: videos other than PNG files need a library: {}", path.string(), library.reason);
  }
  return *library.plugin;
}

// Keys and values in turn, with a null at the end; points into `pairs`.
std::vector<const char*> in_turn(const std::map<std::string, std::string>& pairs) {
  std::vector<const char*> words;
  for (const auto& [key, value] : pairs) words.insert(words.end(), {key.c_str(), value.c_str()});
  words.push_back(nullptr);
  return words;
}

// EXIF's orientation of a display matrix. A pixel of column p and row q appears in column m[0] p + m[3] q and row
// m[1] p + m[4] q, but for a translation, so of the four either the first and last matter, or the two between.
int orientation_of(const int32_t (&matrix)[9], const std::filesystem::path& path) {
  constexpr double kNearly = 1.0 / 64;  // a degree: smaller entries are rounding
  const double across = matrix[0], down_by_column = matrix[1], across_by_row = matrix[3], down = matrix[4];
  const double straight = std::min(std::abs(across), std::abs(down));
  const double turned = std::min(std::abs(down_by_column), std::abs(across_by_row));
  if (std::max(std::abs(down_by_column), std::abs(across_by_row)) < kNearly * straight) {
    if (down > 0) return across > 0 ? 1 : 2;
    return across > 0 ? 4 : 3;
  }
  if (std::max(std::abs(across), std::abs(down)) < kNearly * turned) {
    if (down_by_column > 0) return across_by_row > 0 ? 5 : 6;
    return across_by_row > 0 ? 8 : 7;
  }
  const double first = std::hypot(across, across_by_row), second = std::hypot(down_by_column, down);
  if (first == 0 || second == 0) {
    fail("{}: its display matrix leaves nothing of a frame to be seen", path.string());
  }
  const double degrees = std::atan2(down_by_column / second, across / first) * 180 / M_PI;
  fail("{}: is rotated by {:.0f} degrees; 0, 90, 180 and 270 are supported", path.string(),
       degrees < 0 ? degrees + 360 : degrees);
}

}  // namespace

void load_video_library() { loaded(); }

VideoEncoder::VideoEncoder(const std::filesystem::path& path, const EncodedFormat& format)
    : file_(path), writer_(nullptr, plugin_for(path).close_writer) {
  const std::vector<const char*> encoder_options = in_turn(format.encoder_options),
                                 container_options = in_turn(format.container_options), tags = in_turn(format.tags);
  const VideoPluginFormat plain{.container = format.container.c_str(),
                                .encoder = format.encoder.c_str(),
                                .codec_tag = format.codec_tag.empty() ? nullptr : format.codec_tag.c_str(),
                                .pixels = format.pixels,
                                .width = format.width,
                                .height = format.height,
                                .fps = format.fps,
                                .ticks = format.ticks,
                                .encoder_options = encoder_options.data(),
                                .container_options = container_options.data(),
                                .tags = tags.data()};
  VideoPluginError error{};
  writer_.reset(plugin_for(path).open_writer(file_.temporary().c_str(), &plain, &error));
  check(writer_ ? 0 : -1, error);
  file_.check_not_stopped();  // opening creates a deleted file again
}

// Where the file was removed because the run is to end, that is what went wrong.
void VideoEncoder::check(int code, const VideoPluginError& error) const {
  if (code >= 0) return;
  file_.check_not_stopped();
  fail("{}: {}", file_.path().string(), error.text);
}

void VideoEncoder::add_frame(const uint8_t* pixels, const uint32_t* colours, int64_t time, int64_t duration) {
  VideoPluginError error{};
  check(plugin_for(file_.path()).add_frame(writer_.get(), pixels, colours, time, duration, &error), error);
}

void VideoEncoder::finish() {
  VideoPluginError error{};
  check(plugin_for(file_.path()).finish(writer_.get(), &error), error);
  file_.commit();
}

VideoDecoder::VideoDecoder(std::filesystem::path path) : path_(std::move(path)), reader_(nullptr, nullptr) {
  const InputFile file(path_);  // on a pipe FFmpeg would wait for the writer
  const VideoPlugin& plugin = plugin_for(path_);
  VideoPluginError error{};
  reader_ = {plugin.open_reader(path_.c_str(), kMaxImagePixels, &error), plugin.close_reader};
  if (!reader_) fail("{}: {}", path_.string(), error.text);
}

double VideoDecoder::fps() const { return plugin_for(path_).fps(reader_.get()); }

std::map<std::string, std::string> VideoDecoder::metadata() const {
  std::map<std::string, std::string> tags;
  const char *key = nullptr, *value = nullptr;
  for (int i = 0; plugin_for(path_).tag(reader_.get(), i, &key, &value) != 0; ++i) tags.emplace(key, value);
  return tags;
}

Tensor VideoDecoder::next() {
  VideoPluginError error{};
  VideoPluginFrame frame{};
  const int more = plugin_for(path_).next_frame(reader_.get(), &frame, &error);
  if (more < 0) fail("{}: {}", path_.string(), error.text);
  if (more == 0) return {};
  hdr_ = frame.hdr != 0;
  transparent_ = transparent_ || frame.transparent != 0;
  const int orientation = frame.turned != 0 ? orientation_of(frame.matrix, path_) : 1;
  const bool on_its_side = orientation > 4;
  const int across = on_its_side ? frame.pixel_height : frame.pixel_width,
            down = on_its_side ? frame.pixel_width : frame.pixel_height;
  pixel_aspect_ = across == down || across <= 0 || down <= 0 ? "" : fmt::format("{}:{}", across, down);
  Tensor image = Tensor::uninitialized(DType::kU8, {frame.height, frame.width, 3});
  const size_t row = static_cast<size_t>(frame.width) * 3;
  for (int y = 0; y < frame.height; ++y) {
    std::memcpy(image.data<uint8_t>() + static_cast<size_t>(y) * row, frame.rgb + y * frame.stride, row);
  }
  return upright(std::move(image), orientation);
}

int64_t VideoDecoder::count_rest(std::string& damage) {
  VideoPluginError error{};
  const int64_t count = plugin_for(path_).count_rest(reader_.get(), &error);
  damage = error.text;
  return count;
}

}  // namespace zoetrope::io
