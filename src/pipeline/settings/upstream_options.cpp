#include "pipeline/settings/upstream_options.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

using Settings = OptionSet::Settings;

// Every file of that program has it.
constexpr const char* kMark = "pretrained_model_name_or_path";

// Training, data sets, other models, what is logged and uploaded, and how the computation is compiled and laid out.
const std::vector<const char*> kIgnored = {"run_name",
                                           "metrics_file",
                                           "write_metrics",
                                           "timing_metrics_file",
                                           "write_timing_metrics",
                                           "gcs_metrics",
                                           "save_config_to_gcs",
                                           "log_period",
                                           "model_name",
                                           "model_type",
                                           "revision",
                                           "compile_text_encoder",
                                           "replicate_vae",
                                           "vae_decode_chunk",
                                           "vae_encode_chunk",
                                           "scan_layers",
                                           "scan_diffusion_loop",
                                           "jit_initializers",
                                           "from_pt",
                                           "split_head_dim",
                                           "use_experimental_scheduler",
                                           "attention_sharding_uniform",
                                           "tile_search_mode",
                                           "tile_search_iters",
                                           "tile_search_out",
                                           "norm_num_groups",
                                           "train_text_encoder",
                                           "text_encoder_learning_rate",
                                           "snr_gamma",
                                           "timestep_bias",
                                           "diffusion_scheduler_config",
                                           "base_output_directory",
                                           "skip_jax_distributed_system",
                                           "mesh_axes",
                                           "logical_axis_rules",
                                           "vae_logical_axis_rules",
                                           "data_sharding",
                                           "allow_split_physical_axes",
                                           "dataset_name",
                                           "train_split",
                                           "dataset_type",
                                           "cache_latents_text_encoder_outputs",
                                           "dataset_save_location",
                                           "load_tfrecord_cached",
                                           "train_data_dir",
                                           "dataset_config_name",
                                           "jax_cache_dir",
                                           "aot_cache_dir",
                                           "converted_weights_dir",
                                           "hf_data_dir",
                                           "hf_train_files",
                                           "hf_access_token",
                                           "image_column",
                                           "caption_column",
                                           "center_crop",
                                           "random_flip",
                                           "tokenize_captions_num_proc",
                                           "transform_images_num_proc",
                                           "reuse_example_batch",
                                           "enable_data_shuffling",
                                           "remat_policy",
                                           "names_which_can_be_saved",
                                           "names_which_can_be_offloaded",
                                           "checkpoint_every",
                                           "checkpoint_dir",
                                           "pretrained_orbax_dir",
                                           "enable_single_replica_ckpt_restoring",
                                           "learning_rate",
                                           "scale_lr",
                                           "max_train_samples",
                                           "max_train_steps",
                                           "num_train_epochs",
                                           "disable_training_weights",
                                           "tfrecords_dir",
                                           "no_records_per_shard",
                                           "enable_eval_timesteps",
                                           "timesteps_list",
                                           "num_eval_samples",
                                           "warmup_steps_fraction",
                                           "learning_rate_schedule_steps",
                                           "save_optimizer",
                                           "adam_b1",
                                           "adam_b2",
                                           "adam_eps",
                                           "adam_weight_decay",
                                           "opt_enable_grad_clipping",
                                           "max_grad_value",
                                           "opt_enable_grad_global_norm_clipping",
                                           "max_grad_norm",
                                           "profiler_gcs_path",
                                           "enable_jax_named_scopes",
                                           "enable_ondemand_xprof",
                                           "enable_ml_diagnostics",
                                           "prompt_2",
                                           "use_batched_text_encoder",
                                           "use_kv_cache",
                                           "mag_ratios_base_720p",
                                           "mag_ratios_base_480p",
                                           "save_final_checkpoint",
                                           "lightning_from_pt",
                                           "lora_config",
                                           "enable_mllog",
                                           "controlnet_model_name_or_path",
                                           "controlnet_from_pt",
                                           "quantization_local_shard_count",
                                           "compile_topology_num_slices",
                                           "quantization_calibration_method",
                                           "weight_quantization_calibration_method",
                                           "act_quantization_calibration_method",
                                           "bwd_quantization_calibration_method",
                                           "qwix_module_path",
                                           "eval_every",
                                           "eval_data_dir",
                                           "enable_generate_video_for_eval",
                                           "eval_max_number_of_samples_in_bucket",
                                           "enable_ssim",
                                           "motion_encode_batch_size"};

// What is not built, with the values that do not ask for it.
void describe_refused(OptionSet& set) {
  const std::vector<std::string> none{""}, off{"False", "false"}, zero{"0", "0.0"}, f32{"float32", "fp32", "f32"};
  const auto refuse = [&](std::initializer_list<const char*> names, const std::vector<std::string>& neutral,
                          const char* reason) {
    for (const char* name : names) set.unavailable(name, neutral, reason);
  };
  refuse({"wan_transformer_pretrained_model_name_or_path", "unet_checkpoint"}, none,
         "a transformer from elsewhere is not built; it is read from the folder of model");
  refuse({"vae_weights_dtype"}, f32, "is not built; weights and activations of the VAE have one dtype, vae_dtype");
  refuse({"scheduler_dtype"}, f32, "is not built; the scheduler computes in float32");
  refuse({"dropout"}, zero, "is for training, which is not built");
  refuse({"guidance_rescale"}, zero, "is not built");
  refuse({"quantization"}, none, "is not built; dtypes are bf16 and float32");
  refuse({"use_qwix_quantization"}, off, "is not built; dtypes are bf16 and float32");
  refuse({"lightning_repo", "lightning_ckpt"}, none, "is not built; name the files of a distilled Wan model as lora");
  refuse({"enable_lora"}, off, "is not taken; name the files as lora, or as lora_high and lora_low");
  // A file of MaxDiffusion has them for its other models.
  for (const auto& [name, reason] :
       {std::pair("precision", "is not taken; dtype says what is computed in"),
        std::pair("resolution", "is not taken; height and width say the size"),
        std::pair("output_dir", "is not taken; output names the file, or a folder as FOLDER/"),
        std::pair("do_classifier_free_guidance", "is not taken; guidance_scale=1 turns guidance off"),
        std::pair("controlnet_image", "is not taken; VACE models take control_video"),
        std::pair("controlnet_conditioning_scale", "is not taken; VACE models take conditioning_scale")}) {
    set.unavailable(name, none, reason);
    set.ignored_beside(kMark, name, {});
  }
  refuse({"global_batch_size"}, {"0", "1"}, "for several videos give prompts= or num_videos=, and batch_size=");
}

// A degree is a product of one inside a data centre's slice and one across slices; -1 takes what is left over.
void describe_degree(OptionSet& set, const std::string& axis, std::function<std::optional<int64_t>()> current) {
  struct Factors {
    std::optional<int64_t> inside, across;
  };
  constexpr int64_t kMost = 4096;
  const std::string target = axis + "_parallelism";
  const auto factors = std::make_shared<Factors>();
  const auto add = [&](const char* where, std::optional<int64_t> Factors::*mine) {
    set.translated(fmt::format("{}_{}", where, target).c_str(), [=](std::string_view text) -> Settings {
      if (text == kDefaultValue) {
        (factors.get()->*mine).reset();
        if (!factors->inside && !factors->across) return {{target, kDefaultValue}};
      } else {
        const int64_t value = parse_integer(text, {-1, kMost});
        if (value == 0) fail("0 is not possible; -1 takes what is left over");
        if (!factors->inside) factors->inside = current();
        factors.get()->*mine = value;
      }
      if (!factors->inside && factors->across.value_or(1) == 1) return {};
      const int64_t inside = factors->inside.value_or(1), across = factors->across.value_or(1);
      return {{target, fmt::to_string(inside < 0 || across < 0 ? -1 : inside * across)}};
    });
  };
  add("ici", &Factors::inside);
  add("dcn", &Factors::across);
}

// One dtype is computed with. Stored in float32 and computed in bf16 is bf16; the opposite has no name here.
void describe_dtypes(OptionSet& set) {
  struct Dtypes {
    std::string weights, activations;
  };
  const auto dtypes = std::make_shared<Dtypes>();
  const auto add = [&](const char* name, std::string Dtypes::*mine) {
    set.translated(name, [=](std::string_view text) -> Settings {
      const std::string word = dtype_spelling(text);
      if (word != "bf16" && word != "float32") fail("'{}' is none of bf16, float32", text);
      dtypes.get()->*mine = word;
      if (dtypes->weights == "bf16" && dtypes->activations == "float32")
        fail("weights in bf16 are not computed with in float32; give weights_dtype and activations_dtype alike");
      return {{"dtype", dtypes->activations.empty() ? dtypes->weights : dtypes->activations}};
    });
  };
  add("weights_dtype", &Dtypes::weights);
  add("activations_dtype", &Dtypes::activations);
}

// A switch for each step cache, and MagCache's figures, which belong to it even where it is off.
void describe_step_caches(OptionSet& set, GenerateOptions& options) {
  using sampling::StepCacheKind;
  struct MagCache {
    bool off = false;
    std::map<std::string, std::string> figures;  // given while it was off
  };
  const auto mag = std::make_shared<MagCache>();
  const auto current = [&options] { return options.cache; };
  for (const auto& [name, word, kind] :
       {std::tuple("use_magcache", "mag", StepCacheKind::kMag), std::tuple("use_cfg_cache", "cfg", StepCacheKind::kCfg),
        std::tuple("use_sen_cache", "sen", StepCacheKind::kSen)}) {
    set.translated(name, [=, word = std::string(word), kind = kind](std::string_view text) -> Settings {
      const bool on = parse_flag(text), is_mag = kind == StepCacheKind::kMag;
      if (on && current() != StepCacheKind::kNone && current() != kind)
        fail("another step cache is on; one at a time is possible");
      if (is_mag) mag->off = !on;
      Settings settings;
      if (on) settings.emplace_back("cache", word);
      else if (current() == kind) settings.emplace_back("cache", "none");
      return settings;
    });
  }
  for (const auto& [name, target] :
       {std::pair("magcache_thresh", "cache_threshold"), std::pair("magcache_K", "cache_max_skips"),
        std::pair("retention_ratio", "cache_retention"), std::pair("mag_ratios_base", "cache_ratios")}) {
    set.translated(name, [=, target = std::string(target)](std::string_view text) -> Settings {
      if (!mag->off || current() == StepCacheKind::kMag) return Settings{{target, std::string(text)}};
      mag->figures[target] = text;
      return {};
    });
  }
  set.accompanied("cache", OptionSet::Brought::kUnset, [mag](std::string_view value) {
    return value == "mag" ? Settings(mag->figures.begin(), mag->figures.end()) : Settings();
  });
  set.or_list("mag_ratios_base");
}

// What Animate takes there instead of guidance_scale; other models do not. A pose video, which every run of it has, may
// be named later.
void describe_animate_guidance(OptionSet& set, const GenerateOptions& o) {
  struct Given {
    std::string text;   // empty: none
    double before = 0;  // guidance_scale at that time: one that is set later counts
  };
  const auto given = std::make_shared<Given>();
  set.translated("animate_guidance_scale", [given, &o](std::string_view text) -> Settings {
    const bool animates = o.model.find("Animate") != std::string::npos || !o.pose_video.empty();
    if (animates) return {{"guidance_scale", std::string(text)}};
    *given = {std::string(text), o.guidance_scale};
    return {};
  });
  set.accompanied("pose_video", OptionSet::Brought::kAll, [given, &o](std::string_view file) -> Settings {
    if (file.empty() || given->text.empty() || o.guidance_scale != given->before) return {};
    return {{"guidance_scale", given->text}};
  });
}

std::optional<Settings> ignored_count(std::string_view text) {
  parse_integer(text, {0, 1'000'000});
  return std::nullopt;
}

}  // namespace

void describe_upstream_options(OptionSet& set, GenerateOptions& o) {
  set.ignored(kIgnored);
  describe_refused(set);
  describe_degree(set, "context", [&o] { return std::optional(o.context_parallelism); });
  describe_degree(set, "data", [&o] { return o.data_parallelism; });
  describe_degree(set, "fsdp", [&o] { return o.fsdp_parallelism; });
  describe_degree(set, "tensor", [&o] { return o.tensor_parallelism; });
  describe_dtypes(set);
  describe_step_caches(set, o);
  describe_animate_guidance(set, o);
  set.alias(kMark, "model")
      .alias("guidance_scale_high", "guidance_scale")
      .alias("guidance_scale_low", "guidance_scale_2")
      .alias("reference_image_path", "image")
      .alias("pose_video_path", "pose_video")
      .alias("face_video_path", "face_video")
      .alias("background_video_path", "background_video")
      .alias("mask_video_path", "mask");
  set.translated("vae_spatial",
                 [](std::string_view text) -> Settings {
                   return {{"vae_parallel", text == "-1" ? kDefaultValue : std::string(text)}};
                 })
      .translated("per_device_batch_size",
                  [&o](std::string_view text) -> Settings {
                    o.videos_per_device = text == kDefaultValue ? 0 : parse_number(text, {1.0 / 4096, 64});
                    return {};
                  })
      // A trace has all steps.
      .translated("skip_first_n_steps_for_profiler", ignored_count)
      .translated("profiler_steps", ignored_count)
      .translated("enable_profiler",
                  [&o](std::string_view text) -> Settings {
                    constexpr const char* kFile = "trace.json";
                    if (parse_flag(text)) return {{"trace", o.trace.empty() ? kFile : o.trace}};
                    if (o.trace == kFile) return {{"trace", kDefaultValue}};
                    return {};
                  })
      .translated("image_url", [](std::string_view text) -> std::optional<Settings> {
        if (text.find("://") != std::string_view::npos) return std::nullopt;
        return Settings{{"image", std::string(text)}};
      });
  // There it is about padding that sharding adds to a sequence, to which no token attends here.
  set.ignored_beside(kMark, "mask_padding_tokens", {});
  set.ignored_beside(kMark, "hardware", {"tpu", "gpu"});
  set.ignored_beside(kMark, "mode", {""});  // of models other than Animate
}

}  // namespace zoetrope::pipeline
