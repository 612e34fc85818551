#include "pipeline/model_class.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/generate_options.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

struct Input {
  const char* key;
  Need need;
  bool given;
  const char* what;  // for people
};

std::vector<Input> inputs_of(const GenerateOptions& o, const ModelClass& model) {
  return {{"image", model.image, !o.image.empty(), "the picture that the video begins with"},
          {"last_image", model.last_image, !o.last_image.empty(), "the picture that the video ends with"},
          {"control_video", model.control, !o.control_video.empty(), "the video that is followed"},
          {"mask", model.control, !o.mask.empty(), "where it is made anew"},
          {"reference_images", model.control, !o.reference_images.empty(), "pictures of what is shown"},
          {"conditioning_scale", model.control, !o.conditioning_scale.empty(), "how strongly it is followed"}};
}

// "a prompt, image and, where wanted, last_image"
std::string taken(const std::vector<Input>& inputs) {
  std::vector<std::string> needed, optional;
  for (const Input& input : inputs) {
    if (input.need == Need::kRequired) needed.emplace_back(input.key);
    if (input.need == Need::kOptional) optional.emplace_back(input.key);
  }
  std::string text = "a prompt";
  if (needed.empty() && optional.empty()) return text + " alone";
  if (!needed.empty()) text += fmt::format(" and {}", fmt::join(needed, " and "));
  if (!optional.empty()) text += fmt::format(" and, where wanted, {}", fmt::join(optional, ", "));
  return text;
}

}  // namespace

ModelClass model_class(const wan::PipelineConfig& pipeline, const wan::TransformerConfig& transformer,
                       const wan::VaeConfig& vae, const std::string& where) {
  ModelClass model;
  const char* expected = "WanPipeline";
  const int64_t z = vae.z_dim, with_channels = 2 * z + vae.scale_factor_temporal;
  if (transformer.vace()) {
    model = {"controlled video", Conditioning::kControl, Need::kRefused, Need::kRefused, Need::kOptional};
    expected = "WanVACEPipeline";
  } else if (transformer.in_channels == with_channels) {
    const bool ends = transformer.pos_embed_seq_len.has_value();
    // One row of image embeddings too many is what the 2.1 model would make of a last image.
    const Need last = ends ? Need::kRequired : transformer.image_dim ? Need::kRefused : Need::kOptional;
    model = {ends ? "first and last frame to video" : "image to video", Conditioning::kChannels, Need::kRequired, last,
             Need::kRefused};
    expected = "WanImageToVideoPipeline";
  } else if (pipeline.expand_timesteps) {
    model = {"text and image to video", Conditioning::kFirstFrame, Need::kOptional, Need::kRefused, Need::kRefused};
    // Either name runs both ways.
    if (pipeline.class_name == "WanImageToVideoPipeline") expected = "WanImageToVideoPipeline";
  }
  const int64_t channels = model.conditioning == Conditioning::kChannels ? with_channels : z;
  if (transformer.in_channels != channels) {
    fail(
        "{}: transformer/config.json says in_channels {}, but with the {} latent channels of vae/config.json (z_dim) a "
        "model takes {}, or {} with those of a picture and its mask",
        where, transformer.in_channels, z, z, with_channels);
  }
  if (pipeline.class_name != expected) {
    fail("{}: model_index.json names the class {}, but the transformer is one for {}, of class {}", where,
         pipeline.class_name, model.name, expected);
  }
  if (pipeline.expand_timesteps && model.conditioning != Conditioning::kFirstFrame) {
    fail("{}: model_index.json says expand_timesteps, which a model for {} does not have; it must be false", where,
         model.name);
  }
  return model;
}

void check_given_inputs(const GenerateOptions& o, const ModelClass& model, const wan::TransformerConfig& transformer) {
  const std::vector<Input> inputs = inputs_of(o, model);
  for (const Input& input : inputs) {
    if (!input.given || input.need != Need::kRefused) continue;
    fail("{}: this model ({}) takes {}; leave it out", input.key, model.name, taken(inputs));
  }
  if (!o.last_image.empty() && o.num_frames == 1) {
    fail("num_frames=1: one frame cannot be both image and last_image; ask for 5 or more");
  }
  if (!o.mask.empty() && o.control_video.empty()) {
    fail("mask: masks the frames of control_video; name that too, or leave it out");
  }
  if (o.max_area && o.image.empty()) fail("max_area: follows the shape of image; name one, or give height and width");
  reference_paths(o);
  conditioning_scales(o, transformer.vace_layers.size());
}

void check_inputs(const GenerateOptions& o, const ModelClass& model, const wan::TransformerConfig& transformer) {
  check_given_inputs(o, model, transformer);
  for (const Input& input : inputs_of(o, model)) {
    if (input.given || input.need != Need::kRequired) continue;
    fail("{}: this model ({}) needs {}, as {}=FILE", input.key, model.name, input.what, input.key);
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
