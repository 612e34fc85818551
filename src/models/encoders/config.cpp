#include "models/encoders/config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/weights/checkpoint.h"

namespace zoetrope::encoders {
namespace {

// Limits that no plausible model reaches; they keep every product of sizes far inside int64.
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1000;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxDistance = int64_t{1} << 20;     // between tokens
constexpr int64_t kMaxImageSide = 4096;                // of the picture that an image encoder sees
constexpr int64_t kLanczosCode = 1, kBicubicCode = 3;  // as Pillow numbers its filters

// A side that is given as one number or as {"height": …, "width": …}.
ImageProcessorConfig::Size processor_size(const JsonObject& json, const std::string& key) {
  if (!json.has(key)) fail("{}: {} is missing", json.where(), key);
  if (!json.raw().at(key).is_object()) {
    const auto side = json.get_between<int64_t>(key, 1, kMaxImageSide);
    return {side, side};
  }
  const JsonObject size = json.object(key);
  return {size.get_between<int64_t>("height", 1, kMaxImageSide), size.get_between<int64_t>("width", 1, kMaxImageSide)};
}

// "size": one number, the shortest edge, as transformers wrote it at first; {"shortest_edge": …}; or both sides.
void read_processor_size(const JsonObject& json, ImageProcessorConfig& config) {
  const std::string key = "size";
  if (!json.has(key)) fail("{}: {} is missing", json.where(), key);
  const bool object = json.raw().at(key).is_object();
  if (object && !json.object(key).has("shortest_edge")) {
    config.size = processor_size(json, key);
  } else {
    config.shortest_edge = object ? json.object(key).get_between<int64_t>("shortest_edge", 1, kMaxImageSide)
                                  : json.get_between<int64_t>(key, 1, kMaxImageSide);
  }
}

void read_three(const JsonObject& json, const std::string& key, std::array<float, 3>& values) {
  if (!json.has(key)) return;
  const auto found = json.get<std::vector<double>>(key);
  if (found.size() != values.size()) {
    fail("{}: {} has {} values, but must have {}", json.where(), key, found.size(), values.size());
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(found[i]);
}

}  // namespace

TextEncoderConfig TextEncoderConfig::load(const std::filesystem::path& config_json) {
  return from_json(JsonObject::load(config_json));
}

TextEncoderConfig TextEncoderConfig::from_json(const JsonObject& json) {
  TextEncoderConfig config;
  json.find_one_of("model_type", {"umt5"});
  json.find_one_of("feed_forward_proj", {"gated-gelu"});
  json.find_one_of("dense_act_fn", {"gelu_new"});
  json.require_switch("is_gated_act", true);
  io::require_unquantized(json);
  config.vocab_size = json.get_between<int64_t>("vocab_size", 1, int64_t{1} << 24);
  config.d_model = json.get_between<int64_t>("d_model", 1, kMaxDim);
  config.d_kv = json.get_between<int64_t>("d_kv", 1, kMaxHeadDim);
  config.d_ff = json.get_between<int64_t>("d_ff", 1, kMaxDim);
  config.num_layers = json.get_between<int64_t>("num_layers", 1, kMaxLayers);
  config.num_heads = json.get_between<int64_t>("num_heads", 1, kMaxHeads);
  // Half of the buckets are for one side, half of those for one distance each.
  config.relative_attention_num_buckets = json.get_between<int64_t>("relative_attention_num_buckets", 4, 4096, 32);
  config.relative_attention_max_distance = json.get_between<int64_t>(
      "relative_attention_max_distance", config.relative_attention_num_buckets / 4 + 1, kMaxDistance, 128);
  config.layer_norm_epsilon = json.get_between<double>("layer_norm_epsilon", 1e-30, 1.0, 1e-6);
  config.pad_token_id = json.get_between<int64_t>("pad_token_id", 0, config.vocab_size - 1, 0);
  config.eos_token_id = json.get_between<int64_t>("eos_token_id", 0, config.vocab_size - 1, 1);
  return config;
}

ClipVisionConfig ClipVisionConfig::load(const std::filesystem::path& config_json) {
  return from_json(JsonObject::load(config_json));
}

ClipVisionConfig ClipVisionConfig::from_json(const JsonObject& json) {
  // The file of the vision half alone, or of a whole model.
  const bool nested = json.has("vision_config");
  if (nested) json.find_one_of("model_type", {"clip"});
  const JsonObject vision = nested ? json.object("vision_config") : json;
  vision.find_one_of("model_type", {"clip_vision_model"});
  vision.get_one_of("hidden_act", {"gelu"});
  io::require_unquantized(json);
  ClipVisionConfig config;
  config.hidden_size = vision.get_between<int64_t>("hidden_size", 1, kMaxDim);
  config.intermediate_size = vision.get_between<int64_t>("intermediate_size", 1, kMaxDim);
  config.num_hidden_layers = vision.get_between<int64_t>("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = vision.get_between<int64_t>("num_attention_heads", 1, kMaxHeads);
  config.image_size = vision.get_between<int64_t>("image_size", 1, kMaxImageSide);
  config.patch_size = vision.get_between<int64_t>("patch_size", 1, config.image_size);
  config.num_channels = vision.get_between<int64_t>("num_channels", 3, 3, 3);
  config.projection_dim = vision.get_between<int64_t>("projection_dim", 1, kMaxDim,
                                                      json.get_between<int64_t>("projection_dim", 1, kMaxDim, 512));
  config.layer_norm_eps = vision.get_between<double>("layer_norm_eps", 1e-30, 1.0, 1e-5);
  if (config.hidden_size % config.num_attention_heads != 0) {
    fail("{}: hidden_size is {}, but must be a multiple of num_attention_heads ({})", json.where(), config.hidden_size,
         config.num_attention_heads);
  }
  if (config.head_dim() > kMaxHeadDim) {
    fail("{}: hidden_size {} over num_attention_heads {} is more than {} a head", json.where(), config.hidden_size,
         config.num_attention_heads, kMaxHeadDim);
  }
  if (config.image_size % config.patch_size != 0) {
    fail("{}: image_size is {}, but must be a multiple of patch_size ({})", json.where(), config.image_size,
         config.patch_size);
  }
  return config;
}

ImageProcessorConfig ImageProcessorConfig::load(const std::filesystem::path& preprocessor_config_json) {
  return from_json(JsonObject::load(preprocessor_config_json));
}

ImageProcessorConfig ImageProcessorConfig::from_json(const JsonObject& file) {
  // A CLIPProcessor's file has the image's part next to the tokenizer's.
  const JsonObject json = file.has("image_processor") ? file.object("image_processor") : file;
  ImageProcessorConfig config;
  json.find_one_of("image_processor_type", {"CLIPImageProcessor", "CLIPImageProcessorFast"});
  const bool resizes = json.get<bool>("do_resize", true), crops = json.get<bool>("do_center_crop", true);
  config.shortest_edge.reset();
  config.crop.reset();
  if (resizes) read_processor_size(json, config);
  if (crops) config.crop = processor_size(json, "crop_size");
  const auto filter = json.get_between<int64_t>("resample", 0, 5, kBicubicCode);
  if (filter != kBicubicCode && filter != kLanczosCode) {
    fail("{}: resample is {}, but must be {} (bicubic) or {} (Lanczos)", json.where(), filter, kBicubicCode,
         kLanczosCode);
  }
  config.lanczos = filter == kLanczosCode;
  config.rescale = json.get_between<double>("rescale_factor", 1e-30, 1e30, 1.0 / 255);
  if (!json.get<bool>("do_rescale", true)) config.rescale.reset();
  config.normalize = json.get<bool>("do_normalize", true);
  read_three(json, "image_mean", config.mean);
  read_three(json, "image_std", config.std);
  for (const float deviation : config.std) {
    if (!(deviation > 0)) fail("{}: image_std holds {}, but must be above 0", json.where(), deviation);
  }
  return config;
}

}  // namespace zoetrope::encoders
