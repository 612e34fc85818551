// A prompt, and pictures or videos where the model takes them, to video: the settings of a run and the run itself.
// Every field is also a `key=value` of the program and of YAML files, under the same name; docs/configuration.md lists
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/api.h"
#include "zoetrope/attention.h"
#include "zoetrope/tensor.h"

namespace zoetrope {

namespace comm {
class Communicator;
}
namespace trace {
class Trace;
}

struct GenerateOptions {
  std::string
      model;  // checkpoint folder in the published (diffusers) layout; with weights=random a name of configs/ too
  std::string weights = "checkpoint";   // checkpoint | random: every tensor by formula, nothing is read or written
  std::optional<int64_t> weights_seed;  // of weights=random alone; unset: 0
  std::string weight_cache;             // folder for weights in the form they are computed with; empty: none
  std::string lora;       // FILE:STRENGTH,… merged into every transformer while it is loaded; strength 1 where unsaid
  std::string lora_high;  // likewise, into the high-noise expert of a model with two
  std::string lora_low;   // into the low-noise expert
  std::string prompt;
  std::string negative_prompt;
  // What the video follows beside the prompt, for models that take it; another model refuses it and says what it takes.
  // Pictures are PNG or JPEG files; a video is a file or a folder of pictures with num_frames frames or more.
  std::string image;             // the first frame: image to video, first and last frame, text and image to video
  std::string last_image;        // the last one
  std::string control_video;     // VACE: followed frame by frame
  std::string mask;              // VACE: a video, folder or picture; white is made anew, black stays
  std::string reference_images;  // VACE: pictures of what is shown, A.png,B.png
  std::vector<double> conditioning_scale;  // VACE: strength, one number or one a control layer; empty: 1
  int64_t height = 480;                    // pixels; multiples of 16
  int64_t width = 832;
  std::optional<int64_t> max_area;  // pixels: height and width follow the shape of image instead
  int64_t num_frames = 81;          // 4k + 1
  int64_t num_inference_steps = 50;
  double guidance_scale = 5.0;             // ≤ 1: no guidance
  std::optional<double> guidance_scale_2;  // of the low-noise expert; unset: guidance_scale
  std::optional<double> flow_shift;        // unset: the checkpoint's
  std::optional<double> boundary_ratio;    // of two experts; unset: the checkpoint's
  std::string scheduler;                   // unipc | flow_match_euler | dpmpp; empty: the checkpoint's
  std::string sigma_grid = "linspace";  // UniPC's grid: linspace (diffusers ≥ 0.37) | legacy (≤ 0.36, native Wan)
  // The noise levels of each step before flow_shift, falling, instead of num_inference_steps of a grid: models that
  // were distilled to a few steps need theirs. One of the two; empty: the grid.
  std::vector<double> sigmas;     // each above 0, at most 1
  std::vector<double> timesteps;  // the same times 1000 (num_train_timesteps)
  int64_t seed = 0;               // -1: one is drawn, see GenerateResult::seed
  int64_t max_sequence_length = 512;
  bool mask_padding_tokens = false;
  std::string latents;  // safetensors file with the initial noise, instead of a seed
  std::string output = "out.mp4";
  int64_t fps = 16;
  std::string dump;   // folder for run.safetensors
  std::string trace;  // file for a Perfetto trace

  // Steps that reuse what an earlier one computed (docs/caches.md). Unset: as published for the model.
  std::string cache = "none";              // none | mag | tea | sen | cfg
  std::optional<double> cache_threshold;   // mag, tea, sen; 0 reuses nothing
  std::optional<int64_t> cache_max_skips;  // mag, sen: after one another
  std::optional<double> cache_retention;   // mag, sen: share of the first steps that always compute
  std::string cache_ratios;                // mag: a model's name, a file or a list; empty: this model's
  std::string cache_coefficients;          // tea: the same
  bool cache_retention_steps = false;      // tea: the variant with five first steps
  std::optional<int64_t> cache_interval;   // cfg; 1 reuses nothing
  bool cache_compare = false;              // denoise without the cache first and state the difference

  std::string dtype = "bf16";  // of the transformer: bf16 | float32
  std::string text_encoder_dtype = "float32";
  std::string vae_dtype = "float32";
  bool vae_tiling = false;              // tiles that overlap and are blended, as the reference cuts them
  std::optional<int64_t> vae_parallel;  // ranks that share a frame's rows; unset: the planner's, as many as help
  std::optional<double> memory_limit;   // GB that this process may use; unset: what the machine has to give

  std::optional<int64_t> ranks;    // in-process ranks; under mpirun the world size
  std::optional<int64_t> threads;  // compute threads of the process; unset: all cores
  // How the ranks are used. What is unset here and in `strategy` is the planner's: it takes the fastest that fits.
  std::string hardware;  // the profile it plans with: a name of configs/hardware/ or a file; empty: what was measured
  attention::StrategyOptions strategy;  // keys attention, ulysses_shards, … without a prefix
  int64_t context_parallelism = -1;
  std::optional<int64_t> data_parallelism;  // parts that the guidance branches are dealt to
  int64_t fsdp_parallelism = 1;
  int64_t tensor_parallelism = 1;
  int64_t flash_min_seq_length = 0;
  double comm_timeout = 300;
  bool check_finite = true;       // end with an Error that names the first value, step and rank that is NaN or infinite
  bool compare_one_rank = false;  // afterwards denoise once more on one rank and state the difference
};

// What a run tells while it goes on. Called on rank 0's thread, but for `load` and `cancelled`.
struct GenerateCallbacks {
  // A line for people ("12 advised, the checkpoint says 3").
  std::function<void(const std::string&)> note;
  // `done` of `total` bytes of a component's stored weights are in the form they are computed with. Called on the
  // thread of the rank that reads them, which of the ranks of one process may be any.
  std::function<void(const std::string& component, int64_t done, int64_t total)> load;
  // Denoising step `done` of `total` has ended; it took `seconds`. Called with done = 0 when denoising begins.
  std::function<void(int64_t done, int64_t total, double seconds)> step;
  // `done` of `total` layers of the step that runs are computed; a layer of two guidance branches apart counts twice.
  std::function<void(int64_t done, int64_t total)> layer;
  // `done` of `total` frames are decoded and on their way to the file; 0 when decoding begins.
  std::function<void(int64_t done, int64_t total)> frames;
  // Returns true when the run should stop (Ctrl-C). Asked between layers and between decoded frames, on every rank.
  std::function<bool()> cancelled;
};

// The most memory that this process had resident while a component worked, file pages included.
struct ComponentMemory {
  std::string component;  // "text encoder", "transformer", "VAE", "whole"
  int64_t peak_bytes = 0;
  int64_t planned_bytes = 0;  // as the memory model said before
};

// Seconds of a part of the run on rank 0: as the planner said before, and as they were.
struct PredictedPart {
  std::string part;  // "load", "text encoder", "denoise", of which "denoise: computing" and others, "VAE decode"
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

// What a step cache did.
struct StepCacheReport {
  std::string name;     // "MagCache"
  std::string pattern;  // a letter a step: C computed, r reused
  int64_t reused = 0;   // steps
  // Of denoising: with cache_compare measured, else what the reused steps would have taken at the pace of the others.
  double seconds_saved = 0;
  std::optional<double> rel_l2;  // with cache_compare: of the latents to those without the cache
};

struct GenerateResult {
  int64_t seed = 0;                           // of the initial noise: the option, or what was drawn
  Tensor latents;                             // [1, C, T, h, w] F32, final, normalised; on every rank
  std::string timing;                         // the timing summary, memory, prediction and step cache included; rank 0
  std::string summary;                        // the most important of it in a few lines; rank 0
  double denoise_seconds = 0;                 // of this rank, all steps
  std::vector<ComponentMemory> memory;        // in the order of time, the whole last; rank 0
  std::vector<PredictedPart> predicted;       // in the order of time; rank 0, empty where nothing was predicted
  std::string written;                        // what was written; rank 0
  bool replaced = false;                      // a file of that name was there before; rank 0
  int64_t bytes_sent = 0;                     // by attention, summed over ranks
  std::optional<double> one_rank_rel_l2;      // with compare_one_rank
  std::optional<StepCacheReport> step_cache;  // on rank 0, with a cache
};

// Runs over options.ranks threads of this process, or as this process' rank of an MPI job when started by mpirun.
// Throws Error with one sentence for everything a user can mend. MPI is left running, for further calls: end it with
// comm::finish_mpi(), or run TextToVideo inside comm::run_mpi(), which also ends all ranks when one fails.
ZOETROPE_API GenerateResult generate(const GenerateOptions& options, const GenerateCallbacks& callbacks = {});

// The part of one rank, for programs that bring their own communicator. Collective over `world`.
class ZOETROPE_API TextToVideo {
 public:
  // Reads and checks configuration, names, shapes and options; reads no weights, allocates nothing large. Shared by the
  // ranks of a process: weights are mapped and converted once.
  static std::shared_ptr<TextToVideo> open(const GenerateOptions& options);
  virtual ~TextToVideo() = default;

  enum class Stop { kAfterDenoise, kAfterOutput };
  virtual GenerateResult run(comm::Communicator& world, const GenerateCallbacks& callbacks, Stop stop) = 0;
  // A line a fact: model, size, degrees, values that override the checkpoint's.
  virtual std::string describe(int ranks) const = 0;
  // Where options.trace records, for comm::RankOptions; lives as long as this object; null without it.
  virtual trace::Trace* recorder() const = 0;
};

}  // namespace zoetrope
