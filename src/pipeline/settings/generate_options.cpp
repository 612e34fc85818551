#include "pipeline/settings/generate_options.h"

#include <algorithm>

#include "attention/strategy_options.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/input_file.h"
#include "base/run_files.h"
#include "base/words.h"
#include "io/media/video.h"
#include "models/sampling/solver.h"
#include "pipeline/settings/best_table.h"
#include "pipeline/settings/lora_options.h"
#include "pipeline/settings/recipes.h"
#include "pipeline/settings/step_cache_options.h"
#include "pipeline/settings/upstream_options.h"
#include "text/prompt.h"

namespace zoetrope::pipeline {
namespace {

using Loras = std::vector<LoraFile>;

const std::vector<std::pair<std::string, WeightSource>> kWeights = {{"checkpoint", WeightSource::kCheckpoint},
                                                                    {"random", WeightSource::kRandom}};
const std::vector<std::pair<std::string, AnimateMode>> kModes = {{"animate", AnimateMode::kAnimate},
                                                                 {"replace", AnimateMode::kReplace}};
const std::vector<std::pair<std::string, WeightsInMemory>> kWeightsInMemory = {
    {"auto", WeightsInMemory::kAuto}, {"bf16", WeightsInMemory::kBf16}, {"as_stored", WeightsInMemory::kAsStored}};
const std::vector<std::pair<std::string, KeepWeights>> kKeeps = {
    {"none", KeepWeights::kNone}, {"transformer", KeepWeights::kTransformer}, {"all", KeepWeights::kAll}};
const std::vector<std::pair<std::string, VaeConvolution>> kConvolutions = {
    {"auto", VaeConvolution::kAuto}, {"direct", VaeConvolution::kDirect}, {"winograd", VaeConvolution::kWinograd}};
const std::vector<std::pair<std::string, sampling::SigmaGrid>> kGrids = {{"linspace", sampling::SigmaGrid::kFromOne},
                                                                         {"legacy", sampling::SigmaGrid::kFrom999}};
const std::vector<std::pair<std::string, DType>> kTransformerDTypes(std::begin(kDTypeWords), std::end(kDTypeWords));
const std::vector<std::pair<std::string, DType>> kDTypes(std::begin(kDTypeWords),
                                                         std::end(kDTypeWords) - 1);  // not int8

std::vector<std::pair<std::string, sampling::SolverKind>> solvers() {
  std::vector<std::pair<std::string, sampling::SolverKind>> words;
  for (const std::string& name : sampling::solver_names()) words.emplace_back(name, sampling::parse_solver_kind(name));
  return words;
}

std::vector<std::string> parse_names(std::string_view text) {
  if (text.empty()) return {};
  const std::vector<std::string_view> names = split(text, ',');
  return {names.begin(), names.end()};
}

std::optional<double> parse_comm_timeout(std::string_view text) {
  if (text == "auto") return std::nullopt;
  return parse_number(text, {0.01, 1e7});
}

std::string names_text(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ",")); }

}  // namespace

std::string keep_weights_text(KeepWeights keep) {
  const auto found = std::ranges::find(kKeeps, keep, [](const auto& word) { return word.second; });
  return "keep_weights=" + found->first;
}

const std::map<std::string, std::string GenerateOptions::*>& file_keys() {
  static const std::map<std::string, std::string GenerateOptions::*> keys = {
      {"transformer", &GenerateOptions::transformer},     {"transformer_2", &GenerateOptions::transformer_2},
      {"text_encoder", &GenerateOptions::text_encoder},   {"vae", &GenerateOptions::vae},
      {"image_encoder", &GenerateOptions::image_encoder}, {"tokenizer", &GenerateOptions::tokenizer}};
  return keys;
}

std::map<std::string, std::filesystem::path> named_files(const GenerateOptions& options) {
  std::map<std::string, std::filesystem::path> files;
  for (const auto& [component, file] : file_keys())
    if (!(options.*file).empty()) files[component] = options.*file;
  return files;
}

DType activation_dtype(const ModelOptions& options) {
  return options.dtype == DType::kI8 ? DType::kBF16 : options.dtype;
}

kernels::ConvAlgorithm convolution_of(const ModelOptions& options) {
  switch (options.vae_convolution) {
    case VaeConvolution::kDirect:
      return kernels::ConvAlgorithm::kDirect;
    case VaeConvolution::kWinograd:
      return kernels::ConvAlgorithm::kWinograd;
    default:
      return kernels::ConvAlgorithm::kAuto;
  }
}

OptionSet describe_options(GenerateOptions& o) {
  OptionSet set;
  set.text("model", o.model,
           "checkpoint folder in the diffusers layout, or ComfyUI's folder of models; with weights=random also a "
           "folder of configs or a name from configs/")
      .choice("weights", o.weights, kWeights,
              "random: tensors are made by formula instead of read, to measure without a download")
      .integer("weights_seed", o.weights_seed, {0, INT64_MAX}, "seed of random weights; unset: 0")
      .integer("layers", o.layers, {1, 1000},
               "only the first N layers of each transformer; the video is not the model's")
      .text("transformer", o.transformer,
            "single file with the transformer's weights, safetensors or GGUF, instead of the folder's")
      .text("transformer_2", o.transformer_2, "single file with the low-noise expert's weights")
      .text("text_encoder", o.text_encoder, "single file with umT5-XXL's weights")
      .text("vae", o.vae, "single file with the VAE's weights")
      .text("image_encoder", o.image_encoder, "single file with the CLIP vision tower's weights")
      .text("tokenizer", o.tokenizer, "tokenizer.json, spiece.model, or a folder with one, instead of the model's")
      .text("weight_cache", o.weight_cache, "folder for packed weights, which the next start only maps")
      .choice("weights_in_memory", o.weights_in_memory, kWeightsInMemory,
              "transformer weights in memory: bf16: all, converted; as_stored: as in the files, each block converted "
              "when used; auto: converted, as many as fit")
      .number("weight_memory", o.weight_memory, {0.001, 1e6},
              "GB for a transformer's converted weights; the rest is read or converted again in each step")
      .choice("keep_weights", o.keep_weights, kKeeps,
              "weights that stay in memory between videos; several videos keep what fits unless set")
      .value<Loras>(
          "lora", o.lora, "text", parse_loras, loras_text,
          "LoRA files with strengths, FILE:0.8,FILE2:1, merged into the transformer, or both experts, while loading")
      .value<Loras>("lora_high", o.lora_high, "text", parse_loras, loras_text, "the same for the high-noise expert")
      .value<Loras>("lora_low", o.lora_low, "text", parse_loras, loras_text, "the same for the low-noise expert")
      .prose("prompt", o.prompt, "what the video shows; @FILE: what this file holds")
      .prose("negative_prompt", o.negative_prompt, "what it should not show")
      .lines("prompts", o.prompts, "instead of prompt: UTF-8 file with one per line; in YAML also a list")
      .integer("num_videos", o.num_videos, {1, 100000}, "videos of each prompt, with the seeds seed, seed+1, …")
      .integer("batch_size", o.batch_size, {1, 64}, "videos denoised together")
      .text("image", o.image, "PNG, JPEG or WebP that the video begins with")
      .text("last_image", o.last_image, "PNG, JPEG or WebP that the video ends with")
      .text("control_video", o.control_video, "video file or folder of pictures that the video follows (VACE)")
      .text("mask", o.mask, "video, folder or picture: white is regenerated, black stays (VACE, Animate)")
      .value<std::vector<std::string>>("reference_images", o.reference_images, "text", parse_names, names_text,
                                       "pictures of what the video shows, A.png,B.png (VACE)")
      .numbers("conditioning_scale", o.conditioning_scale, {-100, 100},
               "strength of control_video and reference_images: one number, or one per control layer; unset: 1 (VACE)")
      .choice("mode", o.mode, kModes,
              "animate: image moves like pose_video; replace: it takes a person's place in background_video (Animate)")
      .text("pose_video", o.pose_video, "video or folder of drawn skeletons (Animate)")
      .text("face_video", o.face_video, "video or folder of square crops of the face (Animate)")
      .text("background_video", o.background_video, "video or folder that image is put into (Animate)")
      .integer("segment_frame_length", o.segment_frame_length, {5, 4093},
               "frames of a segment, denoised together (Animate)")
      .integer("prev_segment_conditioning_frames", o.prev_segment_conditioning_frames, {1, 5},
               "frames that the next segment begins with, 1 or 5 (Animate)")
      .integer("height", o.height, {16, 16384}, "pixels, a multiple of 16")
      .integer("width", o.width, {16, 16384}, "pixels, a multiple of 16")
      .integer("max_area", o.max_area, {256, int64_t{16384} * 16384},
               "pixels of a frame: height and width follow the shape of image; 399360 is 480p, 921600 is 720p")
      .integer("num_frames", o.num_frames, {1, 4093},
               "frames, 4k + 1; Animate: at most those of pose_video, and with 81 all of them")
      .integer("num_inference_steps", o.num_inference_steps, {1, 1000}, "denoising steps")
      .number("guidance_scale", o.guidance_scale, {0, 100}, "classifier-free guidance; 1 or less turns it off")
      .number("guidance_scale_2", o.guidance_scale_2, {0, 100},
              "guidance of the low-noise expert; unset: guidance_scale")
      .number("flow_shift", o.flow_shift, {0.01, 100}, "shift of the noise schedule; unset: the checkpoint's")
      .number("boundary_ratio", o.boundary_ratio, {0, 1},
              "share of the noise schedule above which the high-noise expert works; unset: the checkpoint's")
      .choice("scheduler", o.scheduler, solvers(), "solver of the flow equation; unset: the checkpoint's")
      .choice("sigma_grid", o.sigma_grid, kGrids,
              "UniPC's noise levels: linspace as diffusers >= 0.37, legacy as <= 0.36 and the native code")
      .numbers("sigmas", o.sigmas, {0, 1},
               "noise level of each step before the shift, falling, without the final 0; replaces num_inference_steps")
      .numbers("timesteps", o.timesteps, {0, 1e6}, "noise levels as sigmas, times 1000")
      .value<std::string>(
          "recipe", o.recipe, fmt::format("{}", fmt::join(recipe_names(), ", ")),
          [](std::string_view name) {
            recipe_settings(name);  // throws for a wrong name
            return std::string();
          },
          [](const std::string&) { return std::string(); },
          "settings of a distilled model; lightning_4: lightx2v's, four steps without guidance")
      .accompanied("recipe", OptionSet::Brought::kAll, recipe_settings)
      .integer("seed", o.seed, {-1, INT64_MAX},
               "seed of the initial noise, as PyTorch's CPU generator draws it; -1 draws one and prints it")
      .integer("max_sequence_length", o.max_sequence_length, {1, 512},
               "most tokens of a prompt; the rest is cut off, with a note")
      .flag("mask_padding_tokens", o.mask_padding_tokens,
            "cross-attention ignores the prompt's padding, unlike the reference")
      .text("latents", o.latents,
            "safetensors file with the initial noise (latents.init, or its only tensor; latents.init.1 and so on of "
            "Animate's "
            "later segments)")
      .text("output", o.output, "NAME.mp4, .mov, .webm, .webp, .gif, .png (numbered) or a folder for numbered PNGs")
      .text("grid", o.grid, "one more file, named like output, with all videos side by side")
      .choice("codec", o.codec, {"auto", "h264", "h265", "vp9"},
              "video codec: h264 or h265 in .mp4 and .mov, vp9 in .webm; auto: the first that fits")
      .integer("crf", o.crf, {0, 63},
               "quality of .mp4, .mov and .webm as the encoder counts it, 0 the best; unset: visually lossless")
      .integer("fps", o.fps, {1, 240}, "frames per second of the file")
      .integer("preview", o.preview, {1, 1000}, "steps between small GIFs of the clip, NAME.preview.gif; unset: none")
      .text("dump", o.dump, "folder for run.safetensors: prompt embeddings, every step's latents, frames")
      .text("journal", o.journal,
            "folder that records each step and decoded frame, for resume=; none: no journal; unset: OUTPUT.journal for "
            "runs predicted to last above ten minutes")
      .text("resume", o.resume, "journal of an unfinished run to continue, with any number of ranks")
      .text("trace", o.trace, "file for a Chrome/Perfetto trace of all ranks");
  describe_step_cache_options(set, o);
  set.choice("dtype", o.dtype, kTransformerDTypes,
             "dtype of the transformer's weights and activations; int8: bf16, with the matrices of int8_layers in int8",
             dtype_spelling)
      .text(
          "int8_layers", o.int8_layers,
          "blocks for dtype=int8: inner (all but the first and the last), all, numbers and ranges as 1-28, or auto (as "
          "many as budget= allows, as `zoetrope int8` measured); for two experts two lists with a slash between them")
      .text("int8_calibration", o.int8_calibration,
            "file that `zoetrope int8` wrote; unset: zoetrope/int8.json in the user's cache folder")
      .number("budget", o.budget, {1e-6, 1},
              "largest relative L2 error of the guided velocity against bf16 that int8_layers=auto and "
              "attention_dtype=int8 may cause; cache=drift takes the rest; unset: 0.02 before guidance")
      .choice("text_encoder_dtype", o.text_encoder_dtype, kDTypes,
              "dtype of the text encoder's weights and activations", dtype_spelling)
      .choice("vae_dtype", o.vae_dtype, kDTypes, "dtype of the VAE's weights and activations", dtype_spelling)
      .choice("vae_convolution", o.vae_convolution, kConvolutions,
              "3×3 convolutions of the VAE; winograd: all by Winograd's algorithm; auto: those of 64 channels or more, "
              "except first and last")
      .flag("vae_tiling", o.vae_tiling, "encode and decode in overlapping, blended tiles, as the reference can")
      .integer("vae_parallel", o.vae_parallel, {1, 4096},
               "ranks that share the rows of a frame in the VAE; unset: the planner's choice")
      .number("memory_limit", o.memory_limit, {0.001, 1e6},
              "GB that a process may use, for all its ranks; a larger run is refused before it loads; unset: what is "
              "available")
      .integer("ranks", o.ranks, {1, 4096}, "ranks in this process; under mpirun leave it out; unset: 1")
      .integer("threads", o.threads, {1, 4096},
               "compute threads of this process, shared by its ranks; unset: its cores, by affinity and CPU quota");
  set.text("hardware", o.hardware, kHardwareHelp);
  attention::describe_strategy_options(set, o.strategy);
  set.integer("context_parallelism", o.context_parallelism, {-1, 4096},
              "ranks that share a sequence; -1: those left over")
      .integer("data_parallelism", o.data_parallelism, {-1, 4096},
               "2 runs the two guidance branches on two halves of the ranks; unset: 1 with a named topology "
               "other than flash, else the planner's choice")
      .integer("fsdp_parallelism", o.fsdp_parallelism, {-1, 4096},
               "ranks, each a process, that share the transformer's weights, a part on each; divides the ranks; -1: "
               "all of them; unset: 1, or the planner's choice where weights do not fit")
      .integer("tensor_parallelism", o.tensor_parallelism, {-1, 4096},
               "neighbouring ranks, each with a part of every layer's heads and feed-forward; divides the ranks and "
               "the heads; -1: what context_parallelism=N and data_parallelism leave; unset: 1 with a named topology, "
               "else the planner's choice")
      .integer("flash_min_seq_length", o.flash_min_seq_length, {0, INT64_MAX},
               "sequences shorter than this stay unsharded (every rank computes the same)")
      .value<std::optional<double>>(
          "comm_timeout", o.comm_timeout, "auto, 0.01 … 10000000", parse_comm_timeout,
          [](const std::optional<double>& seconds) { return seconds ? fmt::to_string(*seconds) : "auto"; },
          "seconds that a wait for another rank may last; auto: as long as that rank makes progress (docs/trust.md)")
      .flag("check_finite", o.check_finite, "end the run at the first NaN or infinity; false continues")
      .flag("compare_one_rank", o.compare_one_rank, "afterwards denoise again on one rank and print the difference");
  set.alias("mask_video", "mask");
  set.alias("video", "control_video").alias("num_videos_per_prompt", "num_videos");
  set.unavailable("size", {""}, "a size is two keys here, as width=832 height=480")
      .unavailable("device", {"cpu"}, "everything is computed on CPUs; leave it out");
  set.checked("best", check_best_table);
  describe_upstream_options(set, o);
  return set;
}

std::filesystem::path dump_file(const std::string& folder) { return std::filesystem::path(folder) / "run.safetensors"; }

VideoFormat video_format(const GenerateOptions& options) {
  VideoFormat format;
  format.width = static_cast<int>(options.width);
  format.height = static_cast<int>(options.height);
  format.fps = static_cast<double>(options.fps);
  if (options.codec != "auto") format.codec = options.codec;
  if (options.crf) format.crf = static_cast<int>(*options.crf);
  format.frames = options.num_frames;
  return format;
}

void check_output_format(const GenerateOptions& options) {
  io::check_video_format(options.output, video_format(options));
}

std::map<std::string, std::string> changed_settings(const GenerateOptions& options) {
  GenerateOptions given = options, unset;
  const auto defaults = describe_options(unset).settings();
  std::map<std::string, std::string> changed;
  for (const auto& setting : describe_options(given).settings()) {
    if (std::find(defaults.begin(), defaults.end(), setting) == defaults.end()) changed.insert(setting);
  }
  return changed;
}

namespace {

void check_unweighted(const char* key, const std::string& prompt) {
  const std::string_view part = text::weighted_part(prompt);
  if (part.empty()) return;
  fail(
      "{}: '{}' asks for a weight, which Wan's text encoder does not have; write the words alone, and what matters "
      "first",
      key, part);
}

void check_multiple(const char* key, int64_t value, int64_t unit) {
  if (value % unit == 0) return;
  const int64_t below = value / unit * unit;
  fail("{}={}: must be a multiple of {}; the nearest are {}{}", key, value, unit,
       below > 0 ? fmt::format("{} and ", below) : "", below + unit);
}

}  // namespace

int64_t steps_of(const Request& request) {
  const size_t listed = std::max(request.sigmas.size(), request.timesteps.size());
  return listed > 0 ? static_cast<int64_t>(listed) : request.num_inference_steps;
}

std::array<double, 2> guidance_of(const Request& request) {
  if (request.guidance_scale <= 1) return {1, 1};
  return {request.guidance_scale, request.guidance_scale_2.value_or(request.guidance_scale)};
}

bool spends_measured_errors(const GenerateOptions& o) {
  if (o.dtype == DType::kI8 && o.int8_layers == kChosenLayers) return true;
  return o.budget && o.strategy.attention_dtype == attention::AttentionDtype::kInt8;
}

void check_budget(const GenerateOptions& o) {
  if (!o.budget) return;
  const bool int8 = o.dtype == DType::kI8, layers = int8 && o.int8_layers == kChosenLayers;
  if (!spends_measured_errors(o) && o.cache == sampling::StepCacheKind::kNone)
    fail(
        "budget={}: nothing is chosen by it; set dtype=int8 and int8_layers=auto, attention_dtype=int8, or cache=drift",
        *o.budget);
  if (int8 && !layers)
    fail("budget={}: what int8_layers={} spends of it is not known; set int8_layers=auto", *o.budget, o.int8_layers);
  if (o.strategy.kv_exchange_dtype == parallel::KVExchange::kInt8)
    fail("budget={}: what kv_exchange_dtype=int8 spends of it is not known; leave one of them out", *o.budget);
  check_cache_within_budget(o);
}

void check_cache_within_budget(const GenerateOptions& o) {
  using enum sampling::StepCacheKind;
  if (!o.budget || o.cache == kNone) return;
  if (o.cache != kDrift)
    fail("budget={}: what cache={} spends of it is not known; set cache=drift", *o.budget, step_cache_name(o));
  if (o.cache_threshold)
    fail("budget={}: decides what cache=drift may spend; leave out cache_threshold={}, or the budget", *o.budget,
         *o.cache_threshold);
}

namespace {

// By the descriptions of the keys.
void check_ranges(const GenerateOptions& options) {
  for (const auto& [key, dtype] :
       {std::pair("dtype", options.dtype), std::pair("text_encoder_dtype", options.text_encoder_dtype),
        std::pair("vae_dtype", options.vae_dtype)}) {
    if (dtype == DType::kI8 && std::string_view(key) == "dtype") continue;
    if (dtype != DType::kBF16 && dtype != DType::kF32)
      fail("{}={}: BF16 and F32 can be computed with", key, dtype_name(dtype));
  }
  if (options.dtype != DType::kI8 && options.int8_layers != ModelOptions().int8_layers)
    fail("int8_layers={}: is of dtype=int8; set that, or leave int8_layers out", options.int8_layers);
  if (!options.int8_calibration.empty() && !spends_measured_errors(options))
    fail(
        "int8_calibration={}: is of int8_layers=auto, or of attention_dtype=int8 with a budget; set one, or leave "
        "int8_calibration out",
        options.int8_calibration);
  GenerateOptions copy;
  OptionSet set = describe_options(copy);
  for (const auto& [key, value] : changed_settings(options)) {
    // Lists are checked as such: a program's names may have commas.
    if (!key.starts_with("lora") && key != "reference_images") set.set(key, value, "options");
  }
}

}  // namespace

void check_model_options(const GenerateOptions& o) {
  check_ranges(o);
  if (o.model.empty() && o.transformer.empty())
    fail("model: name the checkpoint folder, as model=FOLDER or in the configuration file");
  for (const auto& [key, loras] :
       {std::pair("lora", &o.lora), std::pair("lora_high", &o.lora_high), std::pair("lora_low", &o.lora_low)})
    check_loras(key, *loras);
}

void check_options(const GenerateOptions& o) {
  check_model_options(o);
  if (o.prompt.empty()) fail("prompt: say what the video shows, as prompt=\"a red cat on a market\"");
  if (o.videos_per_device > 1) {
    fail("per_device_batch_size={}: one video is made here; give it 1 or less, or use zoetrope generate",
         o.videos_per_device);
  }
  check_unweighted("prompt", o.prompt);
  check_unweighted("negative_prompt", o.negative_prompt);
  check_multiple("height", o.height, 16);
  check_multiple("width", o.width, 16);
  if (o.prev_segment_conditioning_frames != 1 && o.prev_segment_conditioning_frames != 5) {
    fail("prev_segment_conditioning_frames={}: must be 1 or 5", o.prev_segment_conditioning_frames);
  }
  if (o.num_frames % 4 != 1 && o.pose_video.empty()) {
    const int64_t below = (o.num_frames - 1) / 4 * 4 + 1;
    fail("num_frames={}: must be 4k + 1; the nearest are {} and {}", o.num_frames, below, below + 4);
  }
  if (o.sink_value_bytes < 0) fail("sink_value_bytes={}: must be 0 or more", o.sink_value_bytes);
  if (!o.resume.empty() && !o.journal.empty() && o.journal != o.resume)
    fail("journal={}: a run that resumes is noted where it was; leave journal out", o.journal);
  const std::string hardware = if_exists(o.hardware);
  const std::string dumped = o.dump.empty() ? "" : dump_file(o.dump).string();
  // A folder of pictures may be that of the dump too.
  const std::filesystem::path output(o.output);
  const bool one_file = output.has_extension() && !is_folder(output);
  check_files_differ({{"hardware", hardware},
                      {"latents", o.latents},
                      {"output", o.output},
                      {"grid", o.grid},
                      {"trace", o.trace},
                      {"dump", one_file ? o.dump : ""},
                      {"dump", dumped}});
}

}  // namespace zoetrope::pipeline
