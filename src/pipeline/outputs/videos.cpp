#include "pipeline/outputs/videos.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/print.h"
#include "base/utf8.h"
#include "base/words.h"
#include "io/media/video.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/outputs/preview_file.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool blank(std::string_view line) { return trimmed(line, " \t\r\v\f").empty(); }

// With the ends of lines removed, and blank lines at the end.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::string_view line : split(text, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
  }
  while (!lines.empty() && blank(lines.back())) lines.pop_back();
  return lines;
}

// Of a file or a folder.
OutputPlace place_of(const std::string& name) {
  std::error_code ignored;
  const bool folder = !fs::path(name).has_filename() || fs::is_directory(name, ignored);
  OutputPlace place = folder ? OutputPlace{name} : output_place(name);
  place.path = without_last_slash(fs::weakly_canonical(fs::absolute(place.path), ignored));
  return place;
}

void check_batch_size(const GenerateOptions& o, int64_t videos) {
  if (o.batch_size <= videos) return;
  fail("batch_size={}: there {} to make; num_videos={} makes as many of a prompt", o.batch_size,
       videos == 1 ? "is one video" : fmt::format("are {} videos", videos), o.batch_size);
}

// What is named, and the pictures of a clip, each once. Names can lead to the same file by links.
class Outputs {
 public:
  void add(const char* key, const std::string& name) {
    if (name.empty()) return;
    check_no_picture(key, name);
    const auto [at, is_new] = named_.emplace(place_of(name).path, fmt::format("{}={}", key, name));
    if (!is_new) refuse(key, name, at->second);
  }
  void add_clip(const char* key, const std::string& name, int64_t frames) {
    add(key, name);
    if (name.empty()) return;
    for (const fs::path& file : io::files_of_clip(name, frames))
      if (file != name) pictures_.emplace(place_of(file.string()).path, fmt::format("a frame of {}={}", key, name));
  }
  // A folder may be that of the pictures, or hold other files too.
  void check_no_picture(const char* key, const std::string& name) const {
    const auto at = name.empty() ? pictures_.end() : pictures_.find(place_of(name).path);
    if (at != pictures_.end()) refuse(key, name, at->second);
  }

 private:
  [[noreturn]] static void refuse(const char* key, const std::string& name, const std::string& other) {
    fail("{}={} is the same file as {}; each needs a file of its own", key, name, other);
  }

  std::map<fs::path, std::string> named_, pictures_;  // to what they are of
};

void check_outputs_differ(const std::vector<GenerateOptions>& videos, const GenerateOptions& options) {
  Outputs outputs;
  outputs.add_clip("grid", options.grid, options.num_frames);
  for (const GenerateOptions& video : videos) outputs.add_clip("output", video.output, video.num_frames);
  if (options.preview && !options.output.empty()) outputs.add("preview", preview_file(options.output).string());
  outputs.check_no_picture("journal", options.journal);
  for (const GenerateOptions& video : videos) {
    outputs.add("trace", video.trace);
    if (videos.size() > 1) outputs.add("dump", video.dump);
    outputs.check_no_picture("dump", video.dump);
    if (!video.dump.empty()) outputs.add("dump", dump_file(video.dump).string());
  }
}

}  // namespace

GenerateOptions with_device_batch(const GenerateOptions& options, int ranks) {
  GenerateOptions with = options;
  with.videos_per_device = 0;
  const bool says = options.num_videos > 1 || options.batch_size > 1 || !options.prompts.empty();
  if (options.videos_per_device == 0 || says) return with;
  const double videos = options.videos_per_device * ranks, whole = std::round(videos);
  constexpr double kMost = 64;
  // Below one: for a job with more devices.
  constexpr double kDigits = 1e-4;  // of a share that is typed
  if (videos < 1 + kDigits) return with;
  if (std::abs(videos - whole) > kDigits * videos || whole > kMost) {
    fail(
        "per_device_batch_size={}: is {:.4g} videos on {}; it must be a whole number from 1 to {}, so for one "
        "video give {:.6g}",
        options.videos_per_device, videos, counted(ranks, "rank"), kMost, 1.0 / ranks);
  }
  with.num_videos = with.batch_size = static_cast<int64_t>(whole);
  return with;
}

void check_series(const GenerateOptions& o, size_t count) {
  if (!o.prompts.empty() && !o.prompt.empty())
    fail(
        "prompts: gives every prompt, so there is no place for prompt; leave one of the two out; an empty prompt= "
        "takes back a file's");
  if (o.num_videos > 1 && !o.latents.empty())
    fail("latents={}: gives every video the same noise; leave out num_videos, or latents", o.latents);
  if (o.seed > INT64_MAX - (o.num_videos - 1))
    fail("seed={}: the last of num_videos={} would be above {}; take a smaller one", o.seed, o.num_videos, INT64_MAX);
  check_batch_size(o, static_cast<int64_t>(count));
  if (count == 1 && !o.grid.empty())
    fail("grid={}: shows several videos, and one is to be made; leave it out, or give prompts or num_videos", o.grid);
  if (count == 1) return;
  if (o.compare_one_rank) fail("compare_one_rank: compares one video; leave out prompts and num_videos");
  for (const auto& [key, path] :
       {std::pair("output", &o.output), std::pair("grid", &o.grid), std::pair("trace", &o.trace)}) {
    if (!path->empty() && place_of(*path).stream)
      fail("{}={}: a pipe or device takes one video; name a file, which gets a number for each", key, *path);
  }
}

std::vector<std::string> listed_prompts(const GenerateOptions& o) {
  const bool is_list = o.prompts.find('\n') != std::string::npos;
  const std::string name = is_list ? "prompts" : fmt::format("prompts={}", o.prompts);
  std::string text = o.prompts;
  try {
    if (!is_list) text = read_file(o.prompts);
  } catch (const Error& error) {
    const bool list = o.prompts.starts_with('[');
    fail("{}: {}{}", name, error.what(),
         list ? "; a list is for YAML files, here name a file with one prompt per line" : "");
  }
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) fail("{}: holds no prompt; write one per line", name);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (blank(lines[i]))
      fail("{}: line {} is blank, and a prompt may not be; remove the line or write its prompt", name, i + 1);
    decode_utf8_or_fail(lines[i], fmt::format("{}: line {}", name, i + 1));
  }
  return lines;
}

int64_t count_videos(const GenerateOptions& o) {
  return o.num_videos * (o.prompts.empty() ? 1 : std::ssize(listed_prompts(o)));
}

std::string numbered(const std::string& path, size_t index, size_t count) {
  if (path.empty() || count == 1) return path;
  constexpr size_t kLeastDigits = 3;
  const size_t digits = std::max(kLeastDigits, fmt::to_string(count - 1).size());
  const std::string number = fmt::format("{:0{}}", index, digits);
  const fs::path file(path), folder = file.parent_path();
  if (!file.has_filename()) return fmt::format("{}_{}/", folder.string(), number);
  const std::string name = file.filename().string();
  const size_t percent = name.find('%');
  if (percent == std::string::npos)
    return (folder / fmt::format("{}_{}{}", file.stem().string(), number, file.extension().string())).string();
  return (folder / fmt::format("{}{}-{}", name.substr(0, percent), number, name.substr(percent))).string();
}

std::vector<GenerateOptions> videos_of(const GenerateOptions& options) {
  const std::vector<std::string> prompts =
      options.prompts.empty() ? std::vector<std::string>{options.prompt} : listed_prompts(options);
  const size_t seeds = static_cast<size_t>(options.num_videos), count = prompts.size() * seeds;
  check_series(options, count);
  std::vector<GenerateOptions> videos;
  for (size_t i = 0; i < count; ++i) {
    GenerateOptions& video = videos.emplace_back(options);
    video.prompts.clear();
    video.grid.clear();
    video.num_videos = video.batch_size = 1;
    video.prompt = prompts[i / seeds];
    if (video.seed >= 0) video.seed += static_cast<int64_t>(i % seeds);
    for (std::string* file : {&video.output, &video.dump, &video.trace}) *file = numbered(*file, i, count);
  }
  check_outputs_differ(videos, options);
  return videos;
}

}  // namespace zoetrope::pipeline
