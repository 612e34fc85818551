#include "models/wan/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/index_range.h"
#include "base/json.h"
#include "base/words.h"
#include "io/weights/checkpoint.h"

namespace zoetrope::wan {

namespace {

// Limits that no plausible model reaches; they keep every product of sizes far inside int64.
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1000;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxChannels = 4096;
constexpr int64_t kMaxPatch = 16;
constexpr int64_t kMaxRows = int64_t{1} << 20;  // positions of a table

template <typename Names>
std::string join(const Names& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

int64_t even(const JsonObject& json, const std::string& key, int64_t value) {
  if (value % 2 != 0) fail("{}: {} is {}, but must be even", json.where(), key, value);
  return value;
}

std::optional<int64_t> optional_between(const JsonObject& json, const std::string& key, int64_t low, int64_t high) {
  if (!json.has(key)) return std::nullopt;
  return json.get_between<int64_t>(key, low, high);
}

void read_vace(const JsonObject& json, TransformerConfig& config) {
  config.vace_layers = json.get<std::vector<int64_t>>("vace_layers");
  config.vace_in_channels = json.get_between<int64_t>("vace_in_channels", 1, kMaxChannels, 96);
  const auto& layers = config.vace_layers;
  const bool legal = !layers.empty() && layers.front() == 0 && layers.back() < config.num_layers &&
                     std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  if (!legal) {
    fail("{}: vace_layers is [{}], but must begin with 0, rise, and stay below num_layers = {}", json.where(),
         join(layers), config.num_layers);
  }
}

// Of the original motion encoder, from 4 × 4 pixels up: 512 up to 32 × 32, then half as many at each size.
int64_t published_motion_channels(int64_t size) { return size <= 32 ? 512 : std::max<int64_t>(1, 16384 / size); }

std::vector<int64_t> motion_channels(const JsonObject& json, int64_t image_size) {
  const char* key = "motion_encoder_channel_sizes";
  std::vector<int64_t> channels;
  const bool given = json.has(key);
  for (int64_t size = image_size; size >= 4; size /= 2) {
    channels.push_back(given ? json.object(key).get_between<int64_t>(fmt::to_string(size), 1, kMaxChannels)
                             : published_motion_channels(size));
  }
  return channels;
}

// As many channels as the reference image, its mask and the latents have; either key may be left out.
void read_animate(const JsonObject& json, TransformerConfig& config) {
  FaceConfig face;
  face.image_size = json.get_between<int64_t>("motion_encoder_size", 8, 4096, 512);
  if ((face.image_size & (face.image_size - 1)) != 0)
    fail("{}: motion_encoder_size is {}, but must be a power of two", json.where(), face.image_size);
  face.motion_channels = motion_channels(json, face.image_size);
  face.style_dim = json.get_between<int64_t>("motion_style_dim", 1, kMaxDim, 512);
  face.motion_dim = json.get_between<int64_t>("motion_dim", 1, kMaxChannels, 20);
  face.vector_dim = json.get_between<int64_t>("motion_encoder_dim", 1, kMaxDim, 512);
  face.hidden_dim = json.get_between<int64_t>("face_encoder_hidden_dim", 1, kMaxDim, 1024);
  face.heads = json.get_between<int64_t>("face_encoder_num_heads", 1, kMaxHeads, 4);
  face.every = json.get_between<int64_t>("inject_face_latents_blocks", 1, kMaxLayers, 5);
  if (face.motion_dim > face.vector_dim) {
    fail("{}: motion_dim is {}, but there are at most motion_encoder_dim = {} directions", json.where(),
         face.motion_dim, face.vector_dim);
  }
  if (config.num_layers % face.every != 0) {
    fail("{}: num_layers is {}, but must be a multiple of inject_face_latents_blocks = {}", json.where(),
         config.num_layers, face.every);
  }
  if (!config.image_dim) fail("{}: image_dim is missing; a WanAnimateTransformer3DModel sees an image", json.where());
  const int64_t latent = json.get_between<int64_t>("latent_channels", 1, kMaxChannels, config.out_channels);
  constexpr int64_t kMask = 4;
  if (latent != config.out_channels || config.in_channels != 2 * latent + kMask) {
    fail(
        "{}: in_channels {}, latent_channels {} and out_channels {} do not go together; in_channels must be "
        "2 latent_channels + {}, and out_channels be latent_channels",
        json.where(), config.in_channels, latent, config.out_channels, kMask);
  }
  config.face = std::move(face);
}

// in_channels and out_channels of Animate follow from latent_channels where they are null.
void default_animate_channels(const JsonObject& json, TransformerConfig& config) {
  const auto in = optional_between(json, "in_channels", 1, kMaxChannels);
  const auto latent = optional_between(json, "latent_channels", 1, kMaxChannels);
  if (!in && !latent) fail("{}: in_channels and latent_channels are missing; one must be there", json.where());
  config.in_channels = in.value_or(2 * latent.value_or(0) + 4);
  config.out_channels = json.get_between<int64_t>("out_channels", 1, kMaxChannels,
                                                  latent.value_or(std::max<int64_t>(1, (config.in_channels - 4) / 2)));
}

std::vector<float> per_channel(const JsonObject& json, const std::string& key, int64_t channels, bool positive) {
  const auto values = json.get<std::vector<double>>(key);
  if (static_cast<int64_t>(values.size()) != channels) {
    fail("{}: {} has {} values, but z_dim is {}", json.where(), key, values.size(), channels);
  }
  for (const double value : values) {
    if (!(std::abs(value) < 1e6) || (positive && !(value > 0))) {
      fail("{}: {} holds {}, which cannot be", json.where(), key, value);
    }
  }
  return {values.begin(), values.end()};
}

std::vector<bool> read_flags(const JsonObject& json, const std::string& key) {
  const auto found = json.raw().find(key);
  if (found == json.raw().end() || found->is_null()) fail("{}: {} is missing", json.where(), key);
  std::vector<bool> flags;
  bool legal = found->is_array();
  for (const auto& item : *found) {
    legal = legal && item.is_boolean();
    if (legal) flags.push_back(item.get<bool>());
  }
  if (!legal) fail("{}: {} must be a list of true and false", json.where(), key);
  return flags;
}

// The classes that a component of a pipeline may have. Classes of one line compute the same from the same files.
struct KnownComponent {
  std::string_view name, library;
  std::vector<std::string_view> classes;
};
const KnownComponent kComponents[] = {
    {"scheduler",
     "diffusers",
     {"UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler", "DPMSolverMultistepScheduler"}},
    {"text_encoder", "transformers", {"UMT5EncoderModel"}},
    {"tokenizer", "transformers", {"T5TokenizerFast", "T5Tokenizer"}},
    {"transformer",
     "diffusers",
     {"WanTransformer3DModel", "WanVACETransformer3DModel", "WanAnimateTransformer3DModel"}},
    {"transformer_2", "diffusers", {"WanTransformer3DModel", "WanVACETransformer3DModel"}},
    {"vae", "diffusers", {"AutoencoderKLWan"}},
    {"image_encoder", "transformers", {"CLIPVisionModelWithProjection", "CLIPVisionModel"}},
    {"image_processor", "transformers", {"CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPProcessor"}},
};

void require_known(const JsonObject& json, const std::string& key, const PipelineConfig::Component& component) {
  const auto known =
      std::find_if(std::begin(kComponents), std::end(kComponents), [&](const auto& one) { return one.name == key; });
  if (known == std::end(kComponents)) {
    fail("{}: component {} ({}) is not one of a Wan pipeline; it must be absent or [null, null]", json.where(), key,
         component.class_name);
  }
  const bool legal = component.library == known->library &&
                     std::count(known->classes.begin(), known->classes.end(), component.class_name) > 0;
  if (legal) return;
  fail("{}: {} is [{}, {}], but must be of {}: {}", json.where(), key, component.library, component.class_name,
       known->library, fmt::join(known->classes, " or "));
}

// [library, class]; nothing for [null, null] and for entries that are not components.
std::optional<PipelineConfig::Component> read_component(const JsonObject& json, const std::string& key) {
  if (key.empty() || key.front() == '_' || !json.raw().at(key).is_array()) return std::nullopt;
  const auto pair = json.get<std::vector<std::optional<std::string>>>(key);
  if (pair.size() != 2 || pair[0].has_value() != pair[1].has_value()) {
    fail("{}: {} must be [library, class] or [null, null]", json.where(), key);
  }
  if (!pair[0]) return std::nullopt;
  const PipelineConfig::Component component{*pair[0], *pair[1]};
  require_known(json, key, component);
  return component;
}

}  // namespace

TransformerConfig TransformerConfig::load(const std::filesystem::path& config_json) {
  return from_json(JsonObject::load(config_json));
}

TransformerConfig TransformerConfig::from_json(const JsonObject& json) {
  TransformerConfig config;
  config.class_name = json.get_one_of(
      "_class_name", {"WanTransformer3DModel", "WanVACETransformer3DModel", "WanAnimateTransformer3DModel"});
  const bool animate = config.class_name == "WanAnimateTransformer3DModel";
  json.find_one_of("qk_norm", {"rms_norm_across_heads"});
  io::require_unquantized(json);
  const auto patch = json.get<std::vector<int64_t>>("patch_size", {1, 2, 2});
  if (patch.size() != 3 || std::any_of(patch.begin(), patch.end(), [](auto p) { return p < 1 || p > kMaxPatch; })) {
    fail("{}: patch_size is [{}], but must be three sizes from 1 to {}", json.where(), join(patch), kMaxPatch);
  }
  std::copy(patch.begin(), patch.end(), config.patch_size.begin());
  config.num_attention_heads = json.get_between<int64_t>("num_attention_heads", 1, kMaxHeads);
  config.attention_head_dim =
      even(json, "attention_head_dim", json.get_between<int64_t>("attention_head_dim", 2, kMaxHeadDim));
  if (animate) {
    default_animate_channels(json, config);
  } else {
    config.in_channels = json.get_between<int64_t>("in_channels", 1, kMaxChannels);
    config.out_channels = json.get_between<int64_t>("out_channels", 1, kMaxChannels, config.in_channels);
  }
  config.text_dim = json.get_between<int64_t>("text_dim", 1, kMaxDim);
  config.freq_dim = even(json, "freq_dim", json.get_between<int64_t>("freq_dim", 2, kMaxDim));
  config.ffn_dim = json.get_between<int64_t>("ffn_dim", 1, kMaxDim);
  config.num_layers = json.get_between<int64_t>("num_layers", 1, kMaxLayers);
  config.cross_attn_norm = json.get<bool>("cross_attn_norm", true);
  config.eps = json.get_between<double>("eps", 1e-30, 1.0, 1e-6);
  config.image_dim = optional_between(json, "image_dim", 1, kMaxDim);
  config.added_kv_proj_dim = optional_between(json, "added_kv_proj_dim", 1, kMaxDim);
  config.pos_embed_seq_len = optional_between(json, "pos_embed_seq_len", 1, kMaxRows);
  config.rope_max_seq_len = json.get_between<int64_t>("rope_max_seq_len", 1, kMaxRows, 1024);
  if (config.class_name == "WanVACETransformer3DModel") read_vace(json, config);
  if (animate) read_animate(json, config);
  return config;
}

TransformerConfig TransformerConfig::with_layers(int64_t layers) const {
  if (layers > num_layers) fail("layers={}: the model has only {} layers", layers, num_layers);
  TransformerConfig config = *this;
  config.num_layers = layers;
  std::erase_if(config.vace_layers, [&](int64_t layer) { return layer >= layers; });
  return config;
}

namespace {

// "3" or "3-7", of numbers below `count`.
IndexRange block_range(std::string_view text, int64_t count) {
  const size_t dash = text.find('-');
  const std::optional<int64_t> first = to_number<int64_t>(text.substr(0, dash));
  const std::optional<int64_t> last =
      dash == std::string_view::npos ? first : to_number<int64_t>(text.substr(dash + 1));
  if (text == "auto") fail("int8_layers: 'auto' chooses blocks of every expert; give it alone");
  if (!first || !last || *first < 0 || *last < *first || *last >= count)
    fail(
        "int8_layers: '{}' is neither inner, all, auto, nor a block or a range of blocks; this model has blocks 0 to "
        "{}, as in 0-{}",
        text, count - 1, count - 1);
  return {*first, *last + 1};
}

}  // namespace

TransformerConfig TransformerConfig::with_int8(const std::string& layers) const {
  TransformerConfig config = *this;
  std::vector<IndexRange> ranges;
  const int64_t count = block_count();
  if (layers == "all") {
    ranges = {{0, count}};
  } else if (layers == "inner") {
    ranges = {{1, num_layers - 1}, {num_layers + 1, count - 1}};
  } else {
    for (const std::string_view range : split(layers, ',')) ranges.push_back(block_range(range, count));
  }
  std::set<int64_t> blocks;
  for (const IndexRange& range : ranges)
    for (int64_t block = range.begin; block < range.end; ++block) blocks.insert(block);
  if (blocks.empty())
    fail("int8_layers={}: this model has {} blocks, none of them between the first and the last; set all", layers,
         count);
  config.int8_blocks.assign(blocks.begin(), blocks.end());
  return config;
}

std::string_view TransformerConfig::published_name(int64_t experts, int64_t short_edge) const {
  constexpr int64_t kText = 16, kImage = 36;  // channels that the model takes: latents; with mask and condition
  constexpr int64_t kLarge = 720;             // pixels
  if (vace() || animate() || pos_embed_seq_len) return {};
  const bool text = in_channels == kText && !image_dim;
  if (text && experts == 1 && num_layers == 30 && inner_dim() == 1536) return "wan2.1_t2v_1.3b";
  if (num_layers != 40 || inner_dim() != 5120) return {};
  if (text) return experts == 1 ? "wan2.1_t2v_14b" : "wan2.2_t2v_a14b";
  if (in_channels != kImage) return {};
  if (experts == 2) return image_dim ? "" : "wan2.2_i2v_a14b";
  if (!image_dim) return {};
  return short_edge >= kLarge ? "wan2.1_i2v_14b_720p" : "wan2.1_i2v_14b_480p";
}

void require_supported(const TransformerConfig& config, const std::string& where) {
  for (const auto& [key, given] : {std::pair("added_kv_proj_dim", config.added_kv_proj_dim.has_value()),
                                   std::pair("pos_embed_seq_len", config.pos_embed_seq_len.has_value())}) {
    if (given && !config.image_dim) fail("{}: {} needs an image_dim, but there is none", where, key);
  }
  // Keys of an image are computed from rows of the embedder, which are as wide as the model.
  if (config.added_kv_proj_dim.value_or(config.inner_dim()) != config.inner_dim()) {
    fail("{}: added_kv_proj_dim is {}, but must be num_attention_heads × attention_head_dim = {}", where,
         *config.added_kv_proj_dim, config.inner_dim());
  }
}

VaeConfig VaeConfig::load(const std::filesystem::path& config_json) { return from_json(JsonObject::load(config_json)); }

VaeConfig VaeConfig::from_json(const JsonObject& json) {
  VaeConfig config;
  json.get_one_of("_class_name", {"AutoencoderKLWan"});
  io::require_unquantized(json);
  config.base_dim = json.get_between<int64_t>("base_dim", 1, kMaxChannels);
  config.decoder_base_dim = json.get_between<int64_t>("decoder_base_dim", 1, kMaxChannels, config.base_dim);
  config.z_dim = json.get_between<int64_t>("z_dim", 1, kMaxChannels);
  config.dim_mult = json.get<std::vector<int64_t>>("dim_mult");
  if (config.dim_mult.empty() || config.dim_mult.size() > 8 ||
      std::any_of(config.dim_mult.begin(), config.dim_mult.end(), [](auto m) { return m < 1 || m > 64; })) {
    fail("{}: dim_mult is [{}], but must be 1 to 8 factors from 1 to 64", json.where(), join(config.dim_mult));
  }
  config.num_res_blocks = json.get_between<int64_t>("num_res_blocks", 1, 64);
  config.temporal_downsample = read_flags(json, "temperal_downsample");
  if (config.temporal_downsample.size() + 1 != config.dim_mult.size()) {
    fail("{}: temperal_downsample has {} entries, but must have one less than dim_mult ({})", json.where(),
         config.temporal_downsample.size(), config.dim_mult.size());
  }
  config.latents_mean = per_channel(json, "latents_mean", config.z_dim, false);
  config.latents_std = per_channel(json, "latents_std", config.z_dim, true);
  config.is_residual = json.get<bool>("is_residual", false);
  config.in_channels = json.get_between<int64_t>("in_channels", 1, kMaxChannels, 3);
  config.out_channels = json.get_between<int64_t>("out_channels", 1, kMaxChannels, 3);
  config.patch_size = json.get_between<int64_t>("patch_size", 1, kMaxPatch, 1);
  constexpr int64_t kColours = 3;
  const int64_t of_patch = kColours * config.patch_size * config.patch_size;
  for (const auto& [key, channels] :
       {std::pair("in_channels", config.in_channels), std::pair("out_channels", config.out_channels)}) {
    if (channels == of_patch) continue;
    fail("{}: {} is {}, but with patch_size {} it must be {}: red, green and blue of each pixel of a patch",
         json.where(), key, channels, config.patch_size, of_patch);
  }
  config.scale_factor_temporal = json.get_between<int64_t>("scale_factor_temporal", 1, 256, 4);
  config.scale_factor_spatial = json.get_between<int64_t>("scale_factor_spatial", 1, 256, 8);
  if (!json.get<std::vector<double>>("attn_scales", {}).empty()) {
    fail("{}: attn_scales must be empty: attention outside the middle block is not supported", json.where());
  }
  // The layers decide the factors; a file that says otherwise would give videos of another size.
  const auto steps = std::count(config.temporal_downsample.begin(), config.temporal_downsample.end(), true);
  const int64_t temporal = int64_t{1} << steps;
  const int64_t spatial = (int64_t{1} << (config.dim_mult.size() - 1)) * config.patch_size;
  if (config.scale_factor_temporal != temporal || config.scale_factor_spatial != spatial) {
    fail("{}: scale_factor_temporal {} and scale_factor_spatial {} do not fit the layers, which scale by {} and {}",
         json.where(), config.scale_factor_temporal, config.scale_factor_spatial, temporal, spatial);
  }
  constexpr int64_t kTileUnit = 64;  // pixels: tiles and their strides are multiples of it
  if (kTileUnit % spatial != 0) {
    fail("{}: scale_factor_spatial is {}, as the layers and patch_size {} scale, but must divide {}", json.where(),
         spatial, config.patch_size, kTileUnit);
  }
  return config;
}

SchedulerConfigFile SchedulerConfigFile::load(const std::filesystem::path& scheduler_config_json) {
  return from_json(JsonObject::load(scheduler_config_json));
}

SchedulerConfigFile SchedulerConfigFile::from_json(const JsonObject& json) {
  constexpr double kMaxShift = 1000;
  SchedulerConfigFile config;
  config.class_name = json.get_one_of(
      "_class_name", {"UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler", "DPMSolverMultistepScheduler"});
  config.num_train_timesteps = json.get_between<int64_t>("num_train_timesteps", 1, 1'000'000, 1000);
  for (const char* key : {"use_dynamic_shifting", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"}) {
    json.require_switch(key, false);
  }
  if (json.has("shift_terminal")) fail("{}: shift_terminal is not supported; it must be null", json.where());
  if (config.class_name == "FlowMatchEulerDiscreteScheduler") {
    config.flow_shift = json.get_between<double>("shift", 1e-3, kMaxShift, 1.0);
    json.require_switch("invert_sigmas", false);
    json.require_switch("stochastic_sampling", false);
    return config;
  }
  config.flow_shift = json.get_between<double>("flow_shift", 1e-3, kMaxShift);
  json.find_one_of("prediction_type", {"flow_prediction"});
  json.find_one_of("final_sigmas_type", {"zero"});
  json.require_switch("use_flow_sigmas", true);
  json.require_switch("thresholding", false);
  config.solver_order = json.get_between<int64_t>("solver_order", 1, 2, 2);
  if (config.class_name == "DPMSolverMultistepScheduler") {
    // lower_order_final and euler_at_final have no effect: the last step goes to 0, which is always of order 1.
    json.find_one_of("algorithm_type", {"dpmsolver++"});
    config.solver_type = json.find_one_of("solver_type", {"midpoint"});
    json.require_switch("use_lu_lambdas", false);
    return config;
  }
  json.require_switch("predict_x0", true);
  if (json.has("solver_p")) fail("{}: solver_p is not supported; it must be null", json.where());
  json.require_switch("lower_order_final", true);
  config.solver_type = json.find_one_of("solver_type", {"bh2"});
  config.disable_corrector = json.get<std::vector<int64_t>>("disable_corrector", {});
  return config;
}

PipelineConfig PipelineConfig::load(const std::filesystem::path& model_index_json) {
  return from_json(JsonObject::load(model_index_json));
}

PipelineConfig PipelineConfig::from_json(const JsonObject& json) {
  PipelineConfig config;
  config.class_name = json.get_one_of(
      "_class_name", {"WanPipeline", "WanImageToVideoPipeline", "WanVACEPipeline", "WanAnimatePipeline"});
  for (const std::string& key : json.keys()) {
    if (const auto component = read_component(json, key)) config.components.emplace(key, *component);
  }
  for (const char* needed : {"scheduler", "text_encoder", "tokenizer", "transformer", "vae"}) {
    if (!config.has(needed)) fail("{}: component {} is missing", json.where(), needed);
  }
  if (json.has("boundary_ratio")) config.boundary_ratio = json.get_between<double>("boundary_ratio", 0.0, 1.0);
  if (config.has("transformer_2") != config.boundary_ratio.has_value()) {
    fail("{}: transformer_2 and boundary_ratio belong together, but there is only {}", json.where(),
         config.boundary_ratio ? "boundary_ratio" : "transformer_2");
  }
  config.expand_timesteps = json.get<bool>("expand_timesteps", false);
  return config;
}

}  // namespace zoetrope::wan
