#include "pipeline/inputs/given_inputs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

struct Input {
  const char* key;
  bool taken, needed;  // by the model
  bool given;
  const char* what;  // for people
};

std::vector<Input> inputs_of(const GenerateOptions& o, const ModelFolder& model) {
  const auto& [image, last, control, animation] =
      std::tie(model.kind.image, model.kind.last_image, model.kind.control, model.kind.animation);
  const GenerateOptions unset;
  const bool replaces = animation.taken && o.mode == AnimateMode::kReplace;
  return {
      {"image", image.taken, image.needed, !o.image.empty(),
       animation.taken ? "the picture of the character" : "the picture that the video begins with"},
      {"last_image", last.taken, last.needed, !o.last_image.empty(), "the picture that the video ends with"},
      {"control_video", control.taken, control.needed, !o.control_video.empty(), "the video that it follows"},
      {"mask", control.taken || replaces, control.needed || replaces, !o.mask.empty(), "which parts to regenerate"},
      {"reference_images", control.taken, control.needed, !o.reference_images.empty(), "pictures of what is shown"},
      {"conditioning_scale", control.taken, control.needed, !o.conditioning_scale.empty(),
       "how strongly it follows control_video"},
      {"pose_video", animation.taken, animation.needed, !o.pose_video.empty(), "the drawn skeletons"},
      {"face_video", animation.taken, animation.needed, !o.face_video.empty(), "the crops of the face"},
      {"background_video", replaces, replaces, !o.background_video.empty(), "the video that the character is put into"},
      {"mode", animation.taken, false, o.mode != unset.mode, "what becomes of the driving video"},
      {"segment_frame_length", animation.taken, false, o.segment_frame_length != unset.segment_frame_length,
       "frames that are made together"},
      {"prev_segment_conditioning_frames", animation.taken, false,
       o.prev_segment_conditioning_frames != unset.prev_segment_conditioning_frames, "frames that segments share"}};
}

// "a prompt, image and, where wanted, last_image"
std::string taken(const std::vector<Input>& inputs) {
  std::vector<std::string> needed, optional;
  for (const Input& input : inputs) {
    if (input.needed) needed.emplace_back(input.key);
    if (input.taken && !input.needed) optional.emplace_back(input.key);
  }
  std::string text = "a prompt";
  if (needed.empty() && optional.empty()) return text + " alone";
  if (!needed.empty()) text += fmt::format(" and {}", fmt::join(needed, " and "));
  if (!optional.empty()) text += fmt::format(" and, where wanted, {}", fmt::join(optional, ", "));
  return text;
}

}  // namespace

void check_given_inputs(const GenerateOptions& o, const ModelFolder& model) {
  const std::vector<Input> inputs = inputs_of(o, model);
  for (const Input& input : inputs) {
    if (!input.given || input.taken) continue;
    if (model.kind.animation.taken && (!o.background_video.empty() || !o.mask.empty()) &&
        o.mode == AnimateMode::kAnimate) {
      fail("{}: mode=animate has no background; leave it out, or set mode=replace", input.key);
    }
    fail("{}: this model ({}) takes {}; leave it out", input.key, model.kind.name, taken(inputs));
  }
  if (!o.last_image.empty() && o.num_frames == 1) {
    fail("num_frames=1: one frame cannot be both image and last_image; ask for 5 or more");
  }
  if (!o.mask.empty() && o.control_video.empty() && model.kind.control.taken) {
    fail("mask: masks the frames of control_video; name that too, or leave it out");
  }
  if (o.max_area && o.image.empty()) fail("max_area: follows the shape of image; name one, or leave max_area out");
  reference_paths(o);
  conditioning_scales(o, model.experts[0].config.vace_layers.size());
}

void check_inputs(const GenerateOptions& o, const ModelFolder& model) {
  check_given_inputs(o, model);
  for (const Input& input : inputs_of(o, model)) {
    if (input.given || !input.needed) continue;
    fail("{}: this model ({}) needs {}, as {}=FILE", input.key, model.kind.name, input.what, input.key);
  }
}

std::vector<fs::path> reference_paths(const GenerateOptions& o) {
  std::vector<fs::path> paths;
  for (const std::string& name : o.reference_images) {
    if (name.empty()) {
      fail("reference_images={}: a name is missing; several are written as reference_images=A.png,B.png",
           fmt::join(o.reference_images, ","));
    }
    paths.emplace_back(name);
  }
  return paths;
}

std::vector<float> conditioning_scales(const GenerateOptions& o, size_t layers) {
  std::vector<float> scales(o.conditioning_scale.begin(), o.conditioning_scale.end());
  if (scales.empty()) scales = {1};
  if (scales.size() == 1) scales.assign(layers, scales.front());
  if (scales.size() != layers) {
    fail("conditioning_scale: {} numbers, but this model has {} control layers; give one number or as many",
         scales.size(), layers);
  }
  return scales;
}

}  // namespace zoetrope::pipeline
