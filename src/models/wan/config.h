// The JSON files of a Wan checkpoint folder as plain structs: what the published files may hold, with the defaults of
// the reference (wan.md sections 1.2–1.7). Only reading and plausibility; whether a transformer
// can run is asked by require_supported(), so that `inspect` can describe one that cannot.
//
// Every load() ignores unknown keys and keys that begin with '_', refuses a `_class_name` it does not know, and refuses
// a size that is missing or absurd with an Error that names the file and the key. Keys that every published file has
// are required; keys that older or newer files leave out take the reference's default.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope {
class JsonObject;
}

namespace zoetrope::wan {

// The face branch of Animate's transformer (wan.md section 14): a motion vector per face frame, face tokens per latent
// frame, and adapters through which the video's tokens attend to them.
struct FaceConfig {
  int64_t image_size = 512;              // motion_encoder_size: side of a face frame, a power of two from 8 on
  std::vector<int64_t> motion_channels;  // at image_size, image_size / 2, …, 4 pixels (motion_encoder_channel_sizes)
  int64_t style_dim = 512;               // motion_style_dim
  int64_t motion_dim = 20;               // directions that a motion is a sum of
  int64_t vector_dim = 512;              // motion_encoder_dim: of a motion vector
  int64_t hidden_dim = 1024;             // face_encoder_hidden_dim: of a head
  int64_t heads = 4;                     // face_encoder_num_heads
  int64_t every = 5;                     // inject_face_latents_blocks: an adapter behind blocks 0, every, 2·every, …

  int64_t tokens() const { return heads + 1; }  // per latent frame; the last one is padding
};

// transformer/config.json
struct TransformerConfig {
  // or WanVACETransformer3DModel, WanAnimateTransformer3DModel
  std::string class_name = "WanTransformer3DModel";
  std::array<int64_t, 3> patch_size{1, 2, 2};  // frames, height, width
  int64_t num_attention_heads = 40;
  int64_t attention_head_dim = 128;
  int64_t in_channels = 16;
  int64_t out_channels = 16;
  int64_t text_dim = 4096;
  int64_t freq_dim = 256;
  int64_t ffn_dim = 13824;
  int64_t num_layers = 40;
  bool cross_attn_norm = true;
  double eps = 1e-6;
  std::optional<int64_t> image_dim;          // 2.1 I2V and FLF2V: rows of the image encoder
  std::optional<int64_t> added_kv_proj_dim;  // second cross-attention over them
  std::optional<int64_t> pos_embed_seq_len;  // FLF2V
  int64_t rope_max_seq_len = 1024;
  std::vector<int64_t> vace_layers;  // ascending; empty unless VACE
  int64_t vace_in_channels = 96;
  std::optional<FaceConfig> face;  // Animate
  // Not of the file: blocks whose matrices are multiplied in int8, ascending; VACE's control blocks count on behind the
  // model's. For a model that computes in bf16.
  std::vector<int64_t> int8_blocks = {};

  int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }          // d
  int64_t patch_volume() const { return patch_size[0] * patch_size[1] * patch_size[2]; }  // latent cells
  int64_t patch_input_dim() const { return in_channels * patch_volume(); }                // per token
  int64_t patch_output_dim() const { return out_channels * patch_volume(); }              // per token
  int64_t control_input_dim() const { return vace_in_channels * patch_volume(); }         // per token
  bool vace() const { return !vace_layers.empty(); }
  bool animate() const { return face.has_value(); }
  int64_t pose_input_dim() const { return out_channels * patch_volume(); }  // per token
  int64_t face_adapters() const { return face ? (num_layers + face->every - 1) / face->every : 0; }
  // Which published model this is, as configs/ spells it: "wan2.1_t2v_14b", … Empty where it is none of those for which
  // settings of step caches were published. The two I2V 2.1 checkpoints differ only in the size they were trained for:
  // the shorter edge of the video in pixels tells, so that a portrait counts as its landscape does (maxdiffusion: the
  // height).
  std::string_view published_name(int64_t experts, int64_t short_edge) const;
  // Of the model and, VACE, of the control stream.
  int64_t block_count() const { return num_layers + static_cast<int64_t>(vace_layers.size()); }

  // The first `layers` of the model, with the control layers beside them. Throws Error for more than it has, naming the
  // key `layers`.
  TransformerConfig with_layers(int64_t layers) const;

  // With `layers` of its blocks in int8: "inner" is all but the first and the last (of the control stream too), "all",
  // or numbers and ranges as "1-28,35". Throws Error that names the key `int8_layers`.
  TransformerConfig with_int8(const std::string& layers) const;

  static TransformerConfig load(const std::filesystem::path& config_json);
  static TransformerConfig from_json(const JsonObject& json);
};

// Throws Error for image keys of another width than the model's or without rows of an image. `where` opens the
// sentence.
void require_supported(const TransformerConfig& config, const std::string& where);

// vae/config.json, both generations.
struct VaeConfig {
  int64_t base_dim = 96;
  int64_t decoder_base_dim = 96;  // null in the file: base_dim
  int64_t z_dim = 16;
  std::vector<int64_t> dim_mult{1, 2, 4, 4};
  int64_t num_res_blocks = 2;
  std::vector<bool> temporal_downsample{false, true, true};  // "temperal_downsample" in the file
  std::vector<float> latents_mean;                           // [z_dim]
  std::vector<float> latents_std;                            // [z_dim]
  bool is_residual = false;                                  // 2.2
  int64_t in_channels = 3;                                   // of a patch
  int64_t out_channels = 3;
  int64_t patch_size = 1;  // null in the file: 1
  int64_t scale_factor_temporal = 4;
  int64_t scale_factor_spatial = 8;

  int64_t temporal_factor() const;  // of the layers, as scale_factor_temporal of a file: 4
  int64_t spatial_factor() const;   // 8 or 16
  // A clip of F frames becomes 1 + ⌊(F−1)/temporal_factor⌋ latent frames; left-over frames are dropped.
  int64_t latent_frames(int64_t video_frames) const;
  int64_t video_frames(int64_t latent_frames) const;

  static VaeConfig load(const std::filesystem::path& config_json);
  static VaeConfig from_json(const JsonObject& json);
};

// scheduler/scheduler_config.json
struct SchedulerConfigFile {
  // or FlowMatchEulerDiscreteScheduler, DPMSolverMultistepScheduler
  std::string class_name = "UniPCMultistepScheduler";
  int64_t num_train_timesteps = 1000;
  double flow_shift = 1.0;  // "shift" of FlowMatchEuler
  int64_t solver_order = 2;
  std::string solver_type = "bh2";
  std::vector<int64_t> disable_corrector;

  static SchedulerConfigFile load(const std::filesystem::path& scheduler_config_json);
  static SchedulerConfigFile from_json(const JsonObject& json);
};

// model_index.json
struct PipelineConfig {
  struct Component {
    std::string library;
    std::string class_name;
  };

  // or WanImageToVideoPipeline, WanVACEPipeline, WanAnimatePipeline
  std::string class_name = "WanPipeline";
  std::map<std::string, Component> components;  // only those present ([null, null] is absent)
  std::optional<double> boundary_ratio;         // two experts: where the second takes over
  bool expand_timesteps = false;                // TI2V

  bool has(const std::string& component) const { return components.count(component) != 0; }

  static PipelineConfig load(const std::filesystem::path& model_index_json);
  static PipelineConfig from_json(const JsonObject& json);
};

}  // namespace zoetrope::wan
