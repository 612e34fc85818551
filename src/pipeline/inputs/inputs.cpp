#include "pipeline/inputs/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/hash.h"
#include "comm/launcher.h"
#include "io/media/image.h"
#include "io/media/video_reader.h"
#include "models/encoders/clip_pixels.h"
#include "models/encoders/config.h"
#include "pipeline/inputs/conditions.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"
#include "planner/available.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

using io::ImageSize;

ImageSize size_of(const TensorView& picture) { return {picture.extent(0), picture.extent(1)}; }
std::string text(ImageSize size) { return fmt::format("{} x {}", size.width, size.height); }

// What a picture is resized by before it is made to fit a canvas.
constexpr int64_t kReferenceUnit = 8;
constexpr int64_t kColours = 3;

// Against stretching.
constexpr const char* kSizeOfVideo = "give width and height of the same shape";
constexpr const char* kCrop = "crop it to that shape";

// The default of num_frames may be nobody's wish: it limits no clip of Animate.
bool limits_animation(int64_t num_frames) { return num_frames != Request().num_frames; }

std::string frames_of(const io::ControlClip& clip) {
  return fmt::format("{} frames{}", clip.available, clip.damage.empty() ? "" : " before it is damaged");
}

// Error where damage, and not the end of the file, would say how many frames the video has.
void require_undamaged(const char* key, const std::string& path, const io::ControlClip& clip) {
  if (clip.damage.empty()) return;
  const int64_t good = clip.available;
  fail("{}={}: after {} frames it {}; copy it again or re-encode it, or set num_frames={} to use those", key, path,
       good, clip.damage, limits_animation(good) ? good : good - 1);
}

// Of one run.
class Reader {
 public:
  Reader(const GenerateOptions& options, const ModelFolder& model) : o_(options), model_(model) {}

  Inputs read() {
    read_ends();
    if (model_.kind.animation.taken) read_animation();
    else if (!o_.control_video.empty()) read_control();
    for (const fs::path& path : reference_paths(o_)) inputs_.references.push_back(read_reference(path));
    return std::move(inputs_);
  }

 private:
  void read_ends() {
    std::vector<std::string> files;
    for (const std::string& file : {o_.image, o_.last_image})
      if (!file.empty()) files.push_back(file);
    if (files.empty()) return;
    if (model_.image_encoder) {
      const encoders::ClipVisionConfig& tower = model_.image_encoder->config;
      inputs_.pixels = Tensor(
          DType::kF32, {static_cast<int64_t>(files.size()), tower.num_channels, tower.image_size, tower.image_size});
    }
    for (size_t i = 0; i < files.size(); ++i) {
      const io::Picture read = io::read_picture(files[i]);
      const TensorView& picture = read.pixels.view();
      const char* key = i == 0 ? "image" : "last_image";
      note_losses(key, read);
      const bool whole = model_.kind.animation.taken;
      if (!whole && i == 0 && !o_.max_area) {
        note_shape(key, size_of(picture), fmt::format("max_area={} keeps its shape", o_.height * o_.width));
      } else if (!whole) {
        note_shape(key, size_of(picture), kCrop);
      }
      inputs_.ends.push_back(whole ? on_black(picture, frame_)
                                   : io::resize(picture, frame_, io::ResizeFilter::kLanczos));
      if (!model_.image_encoder) continue;
      encoders::clip_pixels(model_.image_encoder->processor, picture,
                            inputs_.pixels.view().select(0, static_cast<int64_t>(i)));
    }
  }

  // Where a file is stretched by so much that it is seen: by more than sizes in multiples of 16 do to 16:9, of which
  // 832 x 480 is 2.5 % off.
  void note_shape(const char* key, ImageSize own, const std::string& remedy) {
    note_shape(key, own, "the video", frame_, remedy);
  }
  void note_shape(const char* key, ImageSize own, const char* other_key, ImageSize other, const std::string& remedy) {
    constexpr double kSeen = 1.05;
    const auto a = static_cast<double>(own.width * other.height), b = static_cast<double>(own.height * other.width);
    if (std::max(a, b) <= kSeen * std::min(a, b)) return;
    inputs_.notes.push_back(fmt::format("{} is {}, of another shape than {} ({}), and is stretched; {}", key, text(own),
                                        other_key, text(other), remedy));
  }

  // As many frames as the segments need; fewer are repeated.
  void read_animation() {
    const int64_t frames = segments_of(o_, true).all_frames();
    const int64_t side = model_.experts[0].config.face->image_size;
    // It ends where the video does, as if it had no more frames.
    io::ControlClip pose = read_driving("pose_video", o_.pose_video, std::min(frames, o_.num_frames), frame_);
    note_speed("pose_video", pose);
    note_shape("pose_video", pose.own, kSizeOfVideo);
    inputs_.pose = std::move(pose.frames);
    io::ControlClip face = read_driving("face_video", o_.face_video, frames, {side, side});
    note_drift("face_video", face, pose);
    inputs_.face = std::move(face.frames);
    if (o_.mode == AnimateMode::kAnimate) return;
    io::ControlClip background = read_driving("background_video", o_.background_video, frames, frame_);
    note_drift("background_video", background, pose);
    note_shape("background_video", background.own, kSizeOfVideo);
    inputs_.background = std::move(background.frames);
    const io::ControlClip mask = read_driving("mask", o_.mask, frames, frame_);
    note_drift("mask", mask, pose);
    note_shape("mask", mask.own, kSizeOfVideo);
    inputs_.mask = luminance(mask.frames);
  }

  io::ControlClip read_driving(const char* key, const std::string& path, int64_t frames, ImageSize size) {
    const std::string what = fmt::format("{}=", key);
    const auto to_size = [size](ImageSize) { return size; };
    const io::ControlClip first = io::read_control_clip(path, 1, what, to_size);
    const int64_t available = first.available;
    if (available < o_.num_frames) require_undamaged(key, path, first);
    io::ControlClip clip = io::read_control_clip(path, std::min(available, frames), what, to_size);
    const auto note = [&](const char* effect) {
      inputs_.notes.push_back(fmt::format("{} has {}, the video {}: {}", key, frames_of(first), o_.num_frames, effect));
    };
    if (available == 1 && o_.num_frames > 1) {
      inputs_.notes.push_back(fmt::format("{} is one picture: it is shown all the time", key));
    } else if (available < o_.num_frames) {
      note("it is played back and forth");
    } else if (available > o_.num_frames) {
      note("the rest is left out");
    }
    note_frames(key, clip);
    note_losses(key, clip);
    return clip;
  }

  void note_frames(const char* key, const io::ControlClip& clip) {
    if (clip.hdr) {
      inputs_.notes.push_back(
          fmt::format("{} is HDR and its values are taken as they are; convert it to SDR first", key));
    }
    if (!clip.pixel_aspect.empty()) {
      inputs_.notes.push_back(fmt::format(
          "{} has pixels of {}, which are taken as square; convert it to square pixels first", key, clip.pixel_aspect));
    }
    if (!clip.jump.empty()) inputs_.notes.push_back(fmt::format("{}: {}", key, clip.jump));
  }

  // Of a picture or a clip.
  template <typename Pixels>
  void note_losses(const char* key, const Pixels& read) {
    const bool mask = std::string_view(key) == "mask";
    if (read.transparent) {
      inputs_.notes.push_back(fmt::format("{} has transparent parts, but its alpha is not used{}", key,
                                          mask ? "; white is regenerated" : ""));
    }
    if (read.clipped) {
      inputs_.notes.push_back(
          fmt::format("{} is grey of 16 bits, and as in Pillow all above 255 is white; save it with 8 bits", key));
    }
  }

  // 29.97 and 30, 24 and 25 are alike; and a short GIF's times are in hundredths of a second.
  static bool other_rate(const io::ControlClip& clip, double fps) {
    constexpr double kSame = 0.05;
    return clip.fps > 0 && clip.available > 1 && fps > 0 && std::abs(fps / clip.fps - 1) >= kSame;
  }

  // Frames go together by their numbers.
  void note_drift(const char* key, const io::ControlClip& clip, const io::ControlClip& pose) {
    if (!other_rate(clip, pose.available > 1 ? pose.fps : 0)) return;
    inputs_.notes.push_back(fmt::format(
        "{} has {:.4g} frames per second, but pose_video {:.4g}: they drift apart; convert them to one rate", key,
        clip.fps, pose.fps));
  }

  // The video has a frame for each of the clip's, at its own rate.
  void note_speed(const char* key, const io::ControlClip& clip) {
    const auto fps = static_cast<double>(o_.fps);
    if (!other_rate(clip, fps)) return;
    const double speed = fps / clip.fps;
    inputs_.notes.push_back(fmt::format(
        "{} has {:.4g} frames per second, the video {}: it plays at {:.3g} times its speed; fps={} keeps it", key,
        clip.fps, o_.fps, speed, std::clamp<int64_t>(std::llround(clip.fps), 1, 240)));
  }

  void read_control() {
    io::ControlClip clip = read_control_video();
    const int64_t unit = model_.vae_config.spatial_factor() * model_.experts[0].config.patch_size[1];
    if (!(control_size(clip.own, frame_, unit) == frame_)) {
      inputs_.notes.push_back(fmt::format("control_video is {} and is resized to {}; for the size of the video {}",
                                          text(clip.own), text(frame_), kSizeOfVideo));
    }
    note_speed("control_video", clip);
    inputs_.control_video = std::move(clip.frames);
    if (o_.mask.empty()) return;
    if (io::is_picture(o_.mask)) {
      const io::Picture still = io::read_picture(o_.mask);
      note_losses("mask", still);
      note_shape("mask", size_of(still.pixels), "control_video", clip.own, kCrop);
      inputs_.mask = Tensor::uninitialized(DType::kU8, {1, frame_.height, frame_.width, kColours});
      const Tensor resized = io::resize(still.pixels, frame_, io::ResizeFilter::kLanczos);
      std::memcpy(inputs_.mask.view().raw(), resized.view().raw(), resized.view().bytes());
      return;
    }
    io::ControlClip mask = read_clip("mask", o_.mask);
    // Behind damage, which is no error where no frame of there is used, the lengths are unknown.
    if (mask.available != clip.available && mask.damage.empty() && clip.damage.empty()) {
      fail("mask={}: has {} frames, but control_video={} has {}; they must have as many, or give one picture as mask",
           o_.mask, mask.available, o_.control_video, clip.available);
    }
    note_shape("mask", mask.own, "control_video", clip.own, kCrop);
    inputs_.mask = std::move(mask.frames);
  }

  io::ControlClip read_control_video() {
    try {
      return read_clip("control_video", o_.control_video);
    } catch (const io::TooFewFrames& error) {
      if (error.available == 0) throw;
      const auto& vae = model_.vae_config;
      fail("{}; num_frames={} is the most that fits", error.what(),
           vae.video_frames(vae.latent_frames(error.available)));
    }
  }

  io::ControlClip read_clip(const char* key, const std::string& path) {
    const auto to_frame = [this](ImageSize) { return frame_; };
    io::ControlClip clip = io::read_control_clip(path, o_.num_frames, fmt::format("{}=", key), to_frame);
    if (clip.available > o_.num_frames) {
      inputs_.notes.push_back(
          fmt::format("{} has {}, of which the first {} are used (num_frames)", key, frames_of(clip), o_.num_frames));
    }
    note_frames(key, clip);
    note_losses(key, clip);
    return clip;
  }

  Tensor read_reference(const fs::path& path) {
    const io::Picture read = io::read_picture(path);
    const TensorView& picture = read.pixels.view();
    note_losses("reference_images", read);
    const ImageSize own = size_of(picture);
    if (own.height < kReferenceUnit || own.width < kReferenceUnit) {
      fail("reference_images: {} is {}, but must have at least {} pixels each way", path.string(), text(own),
           kReferenceUnit);
    }
    const ImageSize whole{own.height / kReferenceUnit * kReferenceUnit, own.width / kReferenceUnit * kReferenceUnit};
    Tensor canvas = Tensor::uninitialized(DType::kF32, {frame_.height, frame_.width, kColours});
    reference_canvas(io::resize(picture, whole, io::ResizeFilter::kLanczos), canvas);
    return canvas;
  }

  const GenerateOptions& o_;
  const ModelFolder& model_;
  const ImageSize frame_{o_.height, o_.width};
  Inputs inputs_;
};

}  // namespace

TensorView driving_frame(const Tensor& video, int64_t index) {
  const int64_t frames = video.extent(0), period = std::max<int64_t>(1, 2 * (frames - 1)), at = index % period;
  return video.view().select(0, at < frames ? at : period - at);
}

TensorView Inputs::mask_frames(int64_t frames) const {
  if (!mask || mask.extent(0) == frames) return mask;
  const TensorView& still = mask.view();
  return {still.raw(),
          still.dtype(),
          {frames, still.extent(1), still.extent(2), still.extent(3)},
          {0, still.stride(1), still.stride(2), still.stride(3)}};
}

std::string Inputs::fingerprint() const {
  std::string lines;
  const auto add = [&](const char* key, const TensorView& values) {
    if (values) {
      const std::string_view bytes(values.data<char>(), values.bytes());
      lines += fmt::format("pixels of {}={:016x}\n", key, fnv1a64(bytes));
    }
  };
  for (size_t i = 0; i < ends.size(); ++i) add(i == 0 ? "image" : "last_image", ends[i]);
  add("image as its encoder sees it", pixels);
  add("control_video", control_video);
  add("mask", mask);
  add("pose_video", pose);
  add("face_video", face);
  add("background_video", background);
  for (const Tensor& reference : references) add("reference_images", reference);
  return lines;
}

namespace {

// The memory of a run is checked once it is planned; a driving video of ten minutes would fill it before that.
void require_memory(const GenerateOptions& o, const ModelFolder& model) {
  const auto& face = model.experts[0].config.face;
  const planner::Bytes needed(inputs_bytes(o, face ? face->image_size : 0));
  planner::AvailableQuery query;
  query.processes = comm::launched_processes_here();
  query.user_limit = o.memory_limit;
  const std::vector<planner::MemoryLimit> limits = planner::memory_limits(query);
  if (limits.empty() || needed <= limits.front().available) return;
  fail("the pictures and videos of this run take {} of memory, and {} is {}; give fewer frames or smaller ones",
       needed.text(), limits.front().what, limits.front().available.text());
}

}  // namespace

Inputs read_inputs(const GenerateOptions& options, const ModelFolder& model) {
  require_memory(options, model);
  return Reader(options, model).read();
}

int64_t inputs_bytes(const GenerateOptions& o, int64_t face_size) {
  const int64_t frame = o.height * o.width * kColours;
  if (face_size > 0) {
    const int64_t frames = segments_of(o, true).all_frames();
    // The background, and the mask as it is read and its luminance.
    const int64_t replaced = o.mode == AnimateMode::kReplace ? 2 * frame + o.height * o.width : 0;
    return frame + frames * (frame + face_size * face_size * kColours + replaced);
  }
  int64_t frames = static_cast<int64_t>(reference_paths(o).size() * sizeof(float));
  for (const std::string* picture : {&o.image, &o.last_image}) frames += picture->empty() ? 0 : 1;
  if (!o.control_video.empty()) frames += o.num_frames;
  if (!o.mask.empty()) frames += io::is_picture(o.mask) ? 1 : o.num_frames;
  return frames * frame;
}

GenerateOptions with_size_of_inputs(const GenerateOptions& options, const ModelFolder& model) {
  GenerateOptions sized = options;
  if (model.kind.animation.taken && !options.pose_video.empty()) {
    const io::ControlClip pose = io::read_control_clip(options.pose_video, 1, "pose_video=");
    const int64_t frames = pose.available;
    const bool limited = limits_animation(options.num_frames);
    if (!limited || frames < options.num_frames) require_undamaged("pose_video", options.pose_video, pose);
    if (limited && options.num_frames < frames && options.num_frames <= options.prev_segment_conditioning_frames) {
      fail("num_frames={}: prev_segment_conditioning_frames={} needs {} or more", options.num_frames,
           options.prev_segment_conditioning_frames, options.prev_segment_conditioning_frames + 1);
    }
    sized.num_frames = limited ? std::min(options.num_frames, frames) : frames;
    if (limited && frames < options.num_frames) {
      sized.notes_of_inputs.push_back(fmt::format("num_frames={}, but pose_video has {} frames: the video has {}",
                                                  options.num_frames, frames, frames));
    }
  }
  if (!options.max_area) return sized;
  const auto& config = model.experts[0].config;
  const int64_t unit = model.vae_config.spatial_factor() * std::max(config.patch_size[1], config.patch_size[2]);
  const ImageSize size = size_of_area(size_of(io::read_image(options.image)), *options.max_area, unit);
  const Request unset;  // its size may be nobody's wish
  const bool asked = options.height != unset.height || options.width != unset.width;
  if (asked && (options.height != size.height || options.width != size.width))
    sized.notes_of_inputs.push_back(
        fmt::format("max_area={} and the shape of image make {}x{}, instead of width={} height={}", *options.max_area,
                    size.width, size.height, options.width, options.height));
  sized.height = size.height;
  sized.width = size.width;
  return sized;
}

}  // namespace zoetrope::pipeline
