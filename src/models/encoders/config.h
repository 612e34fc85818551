// The JSON files of the encoders of a checkpoint folder as plain structs, with the defaults of the reference (wan.md
// sections 1.3 and 1.6). Only reading and plausibility.
//
// Every load() ignores unknown keys, refuses a kind of model that it does not know, and refuses a size that is missing
// or absurd with an Error that names the file and the key.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace zoetrope {
class JsonObject;
}

namespace zoetrope::encoders {

// text_encoder/config.json: UMT5, encoder only.
struct TextEncoderConfig {
  int64_t vocab_size = 256384;
  int64_t d_model = 4096;
  int64_t d_kv = 64;
  int64_t d_ff = 10240;
  int64_t num_layers = 24;
  int64_t num_heads = 64;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  int64_t pad_token_id = 0;
  int64_t eos_token_id = 1;

  int64_t attention_dim() const { return num_heads * d_kv; }

  static TextEncoderConfig load(const std::filesystem::path& config_json);
  static TextEncoderConfig from_json(const JsonObject& json);
};

// image_encoder/config.json: the vision half of a CLIP model. Files of a whole CLIP model have it under vision_config.
struct ClipVisionConfig {
  int64_t hidden_size = 1280;
  int64_t intermediate_size = 5120;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 16;
  int64_t image_size = 224;  // a multiple of patch_size
  int64_t patch_size = 14;
  int64_t num_channels = 3;
  int64_t projection_dim = 1024;
  double layer_norm_eps = 1e-5;

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
  int64_t tokens() const { return patches() + 1; }               // the class token is the first
  int64_t layers_used() const { return num_hidden_layers - 1; }  // the state before the last layer is what is wanted

  static ClipVisionConfig load(const std::filesystem::path& config_json);
  static ClipVisionConfig from_json(const JsonObject& json);
};

// image_processor/preprocessor_config.json, as transformers 4 and 5 write it.
struct ImageProcessorConfig {
  struct Size {
    int64_t height = 0, width = 0;
    friend bool operator==(const Size&, const Size&) = default;
  };
  std::optional<int64_t> shortest_edge = 224;  // the other edge follows the picture
  std::optional<Size> size;                    // where the file gives both; neither: the picture is not resized
  std::optional<Size> crop = Size{224, 224};   // from the centre; nothing: not cropped
  bool lanczos = false;                        // the filter; else bicubic
  std::optional<double> rescale = 1.0 / 255;
  bool normalize = true;
  std::array<float, 3> mean{0.48145466f, 0.4578275f, 0.40821073f};
  std::array<float, 3> std{0.26862954f, 0.26130258f, 0.27577711f};

  static ImageProcessorConfig load(const std::filesystem::path& preprocessor_config_json);
  static ImageProcessorConfig from_json(const JsonObject& json);
};

}  // namespace zoetrope::encoders
