#include "pipeline/generate_options.h"

#include <algorithm>

#include "attention/strategy_options.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/run_files.h"
#include "models/sampling/solver.h"
#include "pipeline/lora_options.h"
#include "pipeline/step_cache_options.h"

namespace zoetrope::pipeline {

OptionSet describe_options(GenerateOptions& o) {
  OptionSet set;
  set.text("model", o.model, "checkpoint folder in the diffusers layout; with weights=random also a name from configs/")
      .choice("weights", o.weights, {"checkpoint", "random"},
              "random fills every tensor by formula instead of reading it, to measure without a download")
      .integer("weights_seed", o.weights_seed, {0, INT64_MAX}, "of the weights that weights=random makes; unset: 0")
      .text("weight_cache", o.weight_cache,
            "folder that keeps weights in the form they are computed with, so that the next start only maps them")
      .text("lora", o.lora,
            "LoRA files with their strengths, FILE:0.8,FILE2:1, added to the transformer's weights (of two experts to "
            "both) while they are read")
      .text("lora_high", o.lora_high, "likewise, of two experts to the high-noise one alone")
      .text("lora_low", o.lora_low, "likewise, of two experts to the low-noise one alone")
      .text("prompt", o.prompt, "what the video shows")
      .text("negative_prompt", o.negative_prompt, "what it should not show")
      .text("image", o.image, "PNG or JPEG that the video begins with (image to video, text and image to video)")
      .text("last_image", o.last_image, "PNG or JPEG that the video ends with (first and last frame to video)")
      .text("control_video", o.control_video, "video file or folder of pictures that the video follows (VACE)")
      .text("mask", o.mask, "video, folder or picture; of control_video white is made anew and black stays (VACE)")
      .text("reference_images", o.reference_images, "pictures of what the video shows, A.png,B.png (VACE)")
      .numbers("conditioning_scale", o.conditioning_scale, {-100, 100},
               "how strongly control_video and reference_images are followed: one number, or one a control layer as "
               "1,0.8; unset: 1 (VACE)")
      .integer("height", o.height, {16, 16384}, "pixels, a multiple of 16")
      .integer("width", o.width, {16, 16384}, "pixels, a multiple of 16")
      .integer("max_area", o.max_area, {256, int64_t{16384} * 16384},
               "pixels of a frame: height and width follow the shape of image; 399360 is 480p, 921600 is 720p")
      .integer("num_frames", o.num_frames, {1, 4093}, "frames, 4k + 1")
      .integer("num_inference_steps", o.num_inference_steps, {1, 1000}, "denoising steps")
      .number("guidance_scale", o.guidance_scale, {0, 100}, "classifier-free guidance; 1 or less turns it off")
      .number("guidance_scale_2", o.guidance_scale_2, {0, 100},
              "guidance of the low-noise expert of two-expert models; unset: guidance_scale")
      .number("flow_shift", o.flow_shift, {0.01, 100}, "shift of the noise schedule; unset: the checkpoint's")
      .number("boundary_ratio", o.boundary_ratio, {0, 1},
              "share of the noise schedule above which the high-noise expert works; unset: the checkpoint's")
      .choice("scheduler", o.scheduler, sampling::solver_names(),
              "solver of the flow equation; unset: the checkpoint's")
      .choice("sigma_grid", o.sigma_grid, {"linspace", "legacy"},
              "UniPC's noise levels: linspace as diffusers >= 0.37, legacy as <= 0.36 and the native code")
      .numbers("sigmas", o.sigmas, {0, 1},
               "noise level of each step before the shift, falling, without the final 0, instead of "
               "num_inference_steps of a grid")
      .numbers("timesteps", o.timesteps, {0, 1e6}, "the same as timesteps, 1000 times the noise levels")
      .integer("seed", o.seed, {-1, INT64_MAX},
               "of the initial noise, as PyTorch's CPU generator draws it; -1 draws one and says which")
      .integer("max_sequence_length", o.max_sequence_length, {1, 512}, "text tokens that the prompt is cut to")
      .flag("mask_padding_tokens", o.mask_padding_tokens,
            "let cross-attention see the prompt's own tokens only; the reference attends to the padding too")
      .text("latents", o.latents, "safetensors file with the initial noise (latents.init, or its only tensor)")
      .text("output", o.output, "NAME.mp4, NAME.gif, NAME.png (numbered) or a folder for numbered PNGs")
      .integer("fps", o.fps, {1, 240}, "frames per second of the file")
      .text("dump", o.dump, "folder for run.safetensors: prompt embeddings, every step's latents, frames")
      .text("trace", o.trace, "file for a Chrome/Perfetto trace of all ranks");
  describe_step_cache_options(set, o);
  set.dtype("dtype", o.dtype, "of the transformer")
      .dtype("text_encoder_dtype", o.text_encoder_dtype, "of the text encoder")
      .dtype("vae_dtype", o.vae_dtype, "of the VAE")
      .flag("vae_tiling", o.vae_tiling,
            "encode and decode in overlapping tiles that are blended, as the reference does when asked")
      .integer("vae_parallel", o.vae_parallel, {1, 4096},
               "ranks that share the rows of a frame in the VAE; unset: as the planner chooses")
      .number("memory_limit", o.memory_limit, {0.001, 1e6},
              "GB that this process may use, refused before loading where it would need more; unset: what is available")
      .integer("ranks", o.ranks, {1, 4096}, "ranks in this process; under mpirun leave it out; unset: 1")
      .integer(
          "threads", o.threads, {1, 4096},
          "compute threads of this process, shared by its ranks; unset: the cores of its affinity and its CPU quota");
  set.text("hardware", o.hardware, kHardwareHelp);
  attention::describe_strategy_options(set, o.strategy);
  set.integer("context_parallelism", o.context_parallelism, {-1, 4096},
              "ranks a sequence is split over; -1: what is left")
      .integer("data_parallelism", o.data_parallelism, {-1, 4096},
               "2 runs the two guidance branches on two halves of the ranks; unset: as the planner chooses")
      .integer("fsdp_parallelism", o.fsdp_parallelism, {-1, 4096}, "only 1 so far")
      .integer("tensor_parallelism", o.tensor_parallelism, {-1, 4096}, "only 1 so far")
      .integer("flash_min_seq_length", o.flash_min_seq_length, {0, INT64_MAX},
               "sequences shorter than this stay unsharded (every rank computes the same)")
      .number("comm_timeout", o.comm_timeout, {0.01, 1e7}, "seconds any wait for another rank may last")
      .flag("check_finite", o.check_finite,
            "end the run where NaN or infinity turns up, and name the first tensor, step and rank that has it; false "
            "goes on to a video of them")
      .flag("compare_one_rank", o.compare_one_rank, "afterwards denoise again on one rank and print the difference");
  for (const char* axis : {"context", "data", "fsdp", "tensor"}) {
    set.alias(fmt::format("ici_{}_parallelism", axis).c_str(), fmt::format("{}_parallelism", axis).c_str());
    set.unavailable(fmt::format("dcn_{}_parallelism", axis).c_str(), "1",
                    "degrees across data-centre networks are not built yet; only 1");
  }
  set.alias("video", "control_video");
  set.unavailable("size", "", "a size is two keys here, as width=832 height=480")
      .unavailable("device", "cpu", "everything is computed on CPUs; leave it out")
      .unavailable("batch_size", "1", "a run makes one video; start one for each, with another seed")
      .unavailable("num_videos_per_prompt", "1", "a run makes one video; start one for each, with another seed");
  return set;
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

void check_multiple(const char* key, int64_t value, int64_t unit) {
  if (value % unit == 0) return;
  const int64_t below = value / unit * unit;
  fail("{}={}: must be a multiple of {}; the nearest are {}{}", key, value, unit,
       below > 0 ? fmt::format("{} and ", below) : "", below + unit);
}

}  // namespace

void check_options(const GenerateOptions& o) {
  if (o.model.empty()) fail("model: name the checkpoint folder, as model=FOLDER or in the configuration file");
  if (o.prompt.empty()) fail("prompt: say what the video shows, as prompt=\"a red cat on a market\"");
  check_multiple("height", o.height, 16);
  check_multiple("width", o.width, 16);
  if (o.num_frames % 4 != 1) {
    const int64_t below = (o.num_frames - 1) / 4 * 4 + 1;
    fail("num_frames={}: must be 4k + 1; the nearest are {} and {}", o.num_frames, below, below + 4);
  }
  parse_loras("lora", o.lora);
  parse_loras("lora_high", o.lora_high);
  parse_loras("lora_low", o.lora_low);
  if (o.output.empty()) fail("output: name a file (NAME.mp4, NAME.gif, NAME.png) or a folder");
  const std::string hardware = if_exists(o.hardware);
  check_files_differ({{"hardware", hardware}, {"latents", o.latents}, {"output", o.output}, {"trace", o.trace}});
}

}  // namespace zoetrope::pipeline
