#include "io/media/video_reader.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/run_files.h"
#include "base/words.h"
#include "io/media/animated_webp.h"
#include "io/media/extension.h"
#include "io/media/image_codecs.h"
#include "io/media/video_plugin_host.h"

namespace zoetrope::io {

namespace {

// "frame2" before "frame10": runs of digits are compared as numbers.
bool in_order(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  const auto digits = [](const std::string& text, size_t from) {
    size_t end = from;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    return text.substr(from, end - from);
  };
  while (i < a.size() && j < b.size()) {
    std::string left = digits(a, i), right = digits(b, j);
    if (left.empty() || right.empty()) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    i += left.size();
    j += right.size();
    left.erase(0, std::min(left.find_first_not_of('0'), left.size()));
    right.erase(0, std::min(right.find_first_not_of('0'), right.size()));
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

std::vector<std::filesystem::path> pictures_of(const std::filesystem::path& folder, const std::string& what) {
  std::vector<std::filesystem::path> pictures;
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  if (error) fail("{}{}: this folder cannot be read: {}", what, folder.string(), error.message());
  for (const auto& entry : entries) {
    const bool hidden = entry.path().filename().string().starts_with('.');  // ._0000.png is macOS's, and no picture
    if (!hidden && entry.is_regular_file(error) && has_picture_name(entry.path())) pictures.push_back(entry.path());
  }
  if (pictures.empty()) fail("{}{}: this folder holds no .png, .jpg, .jpeg or .webp file", what, folder.string());
  std::sort(pictures.begin(), pictures.end(),
            [](const auto& a, const auto& b) { return in_order(a.filename().string(), b.filename().string()); });
  return pictures;
}

// A name without its last run of digits, and that number; empty where there is none.
std::optional<std::pair<std::string, int64_t>> numbered(const std::filesystem::path& picture) {
  std::string name = picture.stem().string();
  const size_t last = name.find_last_of("0123456789");
  if (last == std::string::npos) return std::nullopt;
  const size_t first = name.find_last_not_of("0123456789", last) + 1;  // npos + 1 is 0
  const std::optional<int64_t> number = to_number<int64_t>(std::string_view(name).substr(first, last + 1 - first));
  if (!number) return std::nullopt;
  return std::pair(name.erase(first, last + 1 - first), *number);
}

// "frame3.png is followed by frame5.png; is one missing?" Empty where nothing is odd, or names have no such number.
std::string jump_in(std::span<const std::filesystem::path> pictures) {
  std::vector<int64_t> steps;
  std::optional<std::pair<std::string, int64_t>> before;
  for (const std::filesystem::path& picture : pictures) {
    auto here = numbered(picture);
    if (!here || (before && before->first != here->first)) return "";
    if (before) steps.push_back(here->second - before->second);
    before = std::move(here);
  }
  if (steps.empty()) return "";
  std::vector<int64_t> sorted = steps;
  const auto median = sorted.begin() + (std::ssize(sorted) - 1) / 2;  // of an even number the lower one
  std::ranges::nth_element(sorted, median);
  // Times are not as even as numbers of frames are.
  const auto odd = [usual = *median](int64_t step) {
    return step == 0 || (usual > 0 && step > usual && step % usual == 0);
  };
  const auto jump = std::ranges::find_if(steps, odd);
  if (jump == steps.end()) return "";
  const auto at = static_cast<size_t>(jump - steps.begin());
  return fmt::format("{} is followed by {}; is one {}?", pictures[at].filename().string(),
                     pictures[at + 1].filename().string(), *jump == 0 ? "too many" : "missing");
}

// Frames of one size, resized as they are read.
class ClipBuilder {
 public:
  ClipBuilder(const std::filesystem::path& path, int64_t frames, const std::string& what, const SizeRule& rule)
      : path_(path), frames_(frames), what_(what), rule_(rule) {}

  void require(int64_t available) const {
    if (available >= frames_) return;
    throw TooFewFrames(fmt::format("{}{}: has {} frames, but {} are needed", what_, path_.string(), available, frames_),
                       available);
  }

  void add(const Tensor& image, const std::filesystem::path& file) {
    const ImageSize own{image.extent(0), image.extent(1)};
    if (next_ == 0) {
      clip_.own = own;
      target_ = rule_ ? rule_(own) : own;
      clip_.frames = Tensor::uninitialized(DType::kU8, {frames_, target_.height, target_.width, 3});
    }
    if (!(own == clip_.own)) {
      fail("{}{}: frame {} is {} x {}, but the first is {} x {}; all must have one size", what_, file.string(), next_,
           own.width, own.height, clip_.own.width, clip_.own.height);
    }
    const TensorView to = clip_.frames.view().select(0, next_++);
    const Tensor resized = target_ == own ? Tensor() : resize(image, target_, ResizeFilter::kLanczos);
    std::memcpy(to.raw(), resized ? resized.view().raw() : image.view().raw(), to.bytes());
  }

  void add(const Picture& picture, const std::filesystem::path& file) {
    clip_.transparent = clip_.transparent || picture.transparent;
    clip_.clipped = clip_.clipped || picture.clipped;
    add(picture.pixels, file);
  }

  ControlClip finish(int64_t available, double fps = 0) {
    clip_.available = available;
    clip_.fps = fps;
    return std::move(clip_);
  }

 private:
  const std::filesystem::path& path_;
  int64_t frames_;
  const std::string& what_;
  const SizeRule& rule_;
  ControlClip clip_;
  ImageSize target_;
  int64_t next_ = 0;
};

}  // namespace

Clip read_clip(const std::filesystem::path& path, int64_t max_frames) {
  ZT_CHECK(max_frames > 0);
  VideoDecoder decoder(path);
  std::vector<Tensor> frames;
  while (static_cast<int64_t>(frames.size()) < max_frames) {
    Tensor image = decoder.next();
    if (!image) break;
    if (!frames.empty() && !(image.shape() == frames.front().shape())) {
      fail("{}: frame {} is {} x {}, but the first is {} x {}; all must have one size", path.string(), frames.size(),
           image.extent(1), image.extent(0), frames.front().extent(1), frames.front().extent(0));
    }
    frames.push_back(std::move(image));
  }
  if (frames.empty()) fail("{}: holds no frame", path.string());

  Clip clip;
  clip.fps = decoder.fps();
  clip.metadata = decoder.metadata();
  const Tensor& first = frames.front();
  clip.frames =
      Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(frames.size()), first.extent(0), first.extent(1), 3});
  uint8_t* out = clip.frames.data<uint8_t>();
  for (const Tensor& image : frames) {
    std::memcpy(out, image.data<uint8_t>(), image.view().bytes());
    out += image.view().bytes();
  }
  return clip;
}

bool is_picture(const std::filesystem::path& path) {
  return has_picture_name(path) && !is_animated_webp(path) && !is_animated_png(path);
}

ControlClip read_control_clip(const std::filesystem::path& path, int64_t frames, const std::string& what,
                              const SizeRule& size) {
  ZT_CHECK(frames > 0);
  ClipBuilder clip(path, frames, what, size);
  if (is_folder(path)) {
    note_input_folder(path);
    const std::vector<std::filesystem::path> pictures = pictures_of(path, what);
    clip.require(static_cast<int64_t>(pictures.size()));
    const std::span<const std::filesystem::path> used(pictures.data(), static_cast<size_t>(frames));
    for (const std::filesystem::path& picture : used) clip.add(read_picture(picture), picture);
    ControlClip read = clip.finish(static_cast<int64_t>(pictures.size()));
    read.jump = jump_in(used);
    return read;
  }
  if (is_animated_webp(path)) {
    AnimatedWebp animation(path);
    clip.require(animation.count());
    for (int64_t i = 0; i < frames; ++i) clip.add(animation.next(), path);
    ControlClip read = clip.finish(animation.count(), animation.fps());
    read.transparent = animation.transparent();
    return read;
  }
  if (is_picture(path)) {
    clip.require(1);
    clip.add(read_picture(path), path);
    return clip.finish(1);
  }
  VideoDecoder decoder(path);
  int64_t count = 0;
  for (; count < frames; ++count) {
    const Tensor image = decoder.next();
    if (!image) break;
    clip.add(image, path);
  }
  clip.require(count);
  ControlClip read = clip.finish(count, decoder.fps());
  read.hdr = decoder.hdr();
  read.transparent = decoder.transparent();
  read.pixel_aspect = decoder.pixel_aspect();
  read.available += decoder.count_rest(read.damage);
  return read;
}

}  // namespace zoetrope::io
