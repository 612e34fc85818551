// Videos from prompts, and from pictures or videos where the model takes them. A Model is opened once and generates as
// often as wanted: prompts, seeds, sizes and steps are free in each request.
//
//   Model model = Model::open("Wan2.1-T2V-1.3B-Diffusers", {.ranks = 4});
//   const Video video = model.generate({.prompt = "a red cat on a market", .num_frames = 17});
//   // video.frames: [17, 480, 832, 3] bytes
//
// Fields have the names of the `key=value` settings of the program (docs/configuration.md), and errors name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/api.h"
#include "zoetrope/attention.h"
#include "zoetrope/sampling.h"
#include "zoetrope/tensor.h"
#include "zoetrope/video.h"

namespace zoetrope {

enum class WeightSource : uint8_t {
  kCheckpoint,  // the files of the folder
  kRandom,      // every tensor by formula, nothing is read; the folder needs configs only
};

// What stays in memory of a transformer's weights. kBf16: all, converted and packed. kAsStored: the files, from which
// blocks are packed when they are used. kAuto: all packed where the run then fits into memory, else as many as fit; the
// rest as kAsStored.
enum class WeightsInMemory : uint8_t { kAuto, kBf16, kAsStored };

// Weights that stay in memory between two requests. What is not kept is read again by the request that needs it.
enum class KeepWeights : uint8_t {
  kNone,         // least memory: as much as one run needs
  kTransformer,  // those of the transformer (of two experts both), by far the longest to load
  kAll,          // those of the VAE too
};

// How the VAE adds up its 3×3 convolutions. Winograd's algorithm multiplies less; with vae_dtype BF16 its errors
// are larger, within what bf16 is allowed (docs/cpu.md).
enum class VaeConvolution : uint8_t { kAuto, kDirect, kWinograd };

// Merged into a transformer's weights while they are loaded: W + strength · (alpha / rank) · B·A.
struct LoraFile {
  std::filesystem::path file;
  double strength = 1;  // −1000 … 1000
  friend bool operator==(const LoraFile&, const LoraFile&) = default;
};

// What Animate makes of its driving video.
enum class AnimateMode : uint8_t {
  kAnimate,  // the character of `image` moves like it
  kReplace,  // the character takes the place of the person in background_video
};

// What is fixed when a model is opened.
struct ModelOptions {
  WeightSource weights = WeightSource::kCheckpoint;
  std::optional<int64_t> weights_seed;  // of random weights alone; unset: 0
  std::optional<int64_t> layers;        // only the first of each transformer, to rehearse a run; unset: all
  // Files of components instead of the folder's own, safetensors or GGUF, in the layouts of ComfyUI, of the original
  // code, and of llama.cpp, quantised or not; or component folders. The model's folder then needs configs only; without
  // one the shapes of `transformer` say which known model it is.
  std::string transformer, transformer_2;  // the second: the low-noise expert of a model with two
  std::string text_encoder, vae, image_encoder;
  std::string tokenizer;     // folder or file
  std::string weight_cache;  // folder for packed weights, which the next start maps; empty: none
  WeightsInMemory weights_in_memory = WeightsInMemory::kAuto;
  // GB for packed weights of a transformer; the rest is read from weight_cache while the model computes, or without one
  // packed from the model's files again. Unset: as weights_in_memory says.
  std::optional<double> weight_memory;
  KeepWeights keep_weights = KeepWeights::kNone;
  std::vector<LoraFile> lora;       // for every transformer
  std::vector<LoraFile> lora_high;  // for the high-noise expert of a model with two
  std::vector<LoraFile> lora_low;   // for the low-noise expert

  // Dtype of the transformer's weights and activations: BF16 or F32; I8: BF16, and the matrices of some blocks are
  // multiplied in int8 (docs/cpu.md).
  DType dtype = DType::kBF16;
  // With dtype I8, which blocks: "inner" (all but the first and the last), "all", numbers and ranges ("1-28"), where
  // VACE's control blocks count on behind the model's and a slash divides those of two experts, or "auto": as many as
  // `budget` allows, by what `zoetrope int8` measured of this model. Throws Error where that is missing, or the budget
  // is less than one block costs.
  std::string int8_layers = "inner";
  std::string int8_calibration;  // the file of `zoetrope int8`; empty: zoetrope/int8.json in the user's cache folder
  // How far the velocity of a step, guidance included, may be off that of bf16 (relative L2), for what is chosen by its
  // error: int8_layers=auto and attention_dtype=int8. The rest is the threshold of the drift cache; other step caches
  // are refused, because nothing says what they spend. So is a request whose guidance makes more of the error than that
  // for which the model was opened. Unset: 0.02 of one forward, before guidance, for int8_layers.
  std::optional<double> budget;
  DType text_encoder_dtype = DType::kF32;  // F32 or BF16: weights and activations of the text encoder
  DType vae_dtype = DType::kF32;           // likewise of the VAE
  VaeConvolution vae_convolution = VaeConvolution::kAuto;

  std::optional<int64_t> ranks;        // in-process ranks; under mpirun the world size
  std::optional<int64_t> threads;      // compute threads of the process; unset: all cores
  std::optional<double> memory_limit;  // GB that this process may use; unset: what the machine has available
  // Seconds that any wait for another rank may last. Unset: from the predicted time of a step, and for as long as that
  // rank goes on. A communicator of the caller's keeps its own.
  std::optional<double> comm_timeout;
  bool check_finite = true;  // end with an Error that names the first value, step and rank that is NaN or infinite

  // How the ranks are used. The planner decides what is unset here and in `strategy`: the fastest that fits.
  std::string hardware;  // the profile it plans with: a name of configs/hardware/ or a file;
                         // empty: what was measured on this machine
  attention::StrategyOptions strategy;
  int64_t context_parallelism = -1;           // ranks that share a sequence; −1: what is left
  std::optional<int64_t> data_parallelism;    // groups of ranks that the guidance branches are divided among
  std::optional<int64_t> fsdp_parallelism;    // ranks that share the weights, each keeping a part
  std::optional<int64_t> tensor_parallelism;  // ranks that share every layer; −1: what is left; unset: as planned
  int64_t flash_min_seq_length = 0;           // shorter sequences are not divided
  std::optional<int64_t> vae_parallel;        // ranks that share the rows of a frame in the VAE
};

// One video.
struct Request {
  std::string prompt;
  std::string negative_prompt;
  // What the video follows next to the prompt, for models that take it; another model refuses it and says what it
  // takes. Pictures are PNG, JPEG or WebP files; a video is a file or a folder of pictures with num_frames frames or
  // more.
  std::string image;                          // first frame: image to video, first and last frame, text and image
  std::string last_image;                     // last frame
  std::string control_video;                  // VACE: followed frame by frame
  std::string mask;                           // VACE: a video, folder or picture; white is regenerated, black stays.
                                              // Animate, to replace: the same of background_video
  std::vector<std::string> reference_images;  // VACE: pictures of what is shown
  std::vector<double> conditioning_scale;     // VACE: strength, one number or one per control layer; empty: 1

  // Animate, with the character as `image`. Shorter ones than the video made are played back and forth.
  AnimateMode mode = AnimateMode::kAnimate;
  std::string pose_video;                        // drawn skeletons; at most as many frames are made
  std::string face_video;                        // square crops of the face
  std::string background_video;                  // to replace
  int64_t segment_frame_length = 77;             // frames that are denoised together, 4k + 1
  int64_t prev_segment_conditioning_frames = 1;  // of the segment before, which the next one begins with: 1 or 5

  int64_t height = 480;                           // pixels; multiples of 16
  int64_t width = 832;                            // pixels; multiples of 16
  std::optional<int64_t> max_area;                // pixels: height and width follow the shape of `image` instead
  int64_t num_frames = 81;                        // 4k + 1; Animate: at most those of pose_video, and with 81 all
  int64_t num_inference_steps = 50;               // 1 … 1000
  double guidance_scale = 5.0;                    // 0 … 100; ≤ 1: no guidance
  std::optional<double> guidance_scale_2;         // of the low-noise expert; unset: guidance_scale
  std::optional<double> flow_shift;               // unset: the checkpoint's
  std::optional<double> boundary_ratio;           // of two experts; unset: the checkpoint's
  std::optional<sampling::SolverKind> scheduler;  // unset: the checkpoint's
  sampling::SigmaGrid sigma_grid = sampling::SigmaGrid::kFromOne;  // of UniPC
  // The noise level of each step before flow_shift, falling, instead of num_inference_steps of a grid: for models that
  // were distilled to a few steps. One of the two; empty: the grid.
  std::vector<double> sigmas;         // each above 0, at most 1
  std::vector<double> timesteps;      // the same times 1000 (num_train_timesteps)
  int64_t seed = 0;                   // −1: one is drawn, see Video::seed
  std::string latents;                // safetensors file with the initial noise, instead of a seed
  bool decode = true;                 // false: the run ends with Video::latents, without frames; has no key
  int64_t sink_value_bytes = 0;       // bytes per value of a frame that your sink keeps in memory (4 for floats), so
                                      // that the run plans for them; has no key
  int64_t max_sequence_length = 512;  // tokens of the prompt, 1 … 512
  bool mask_padding_tokens = false;   // cross-attention sees the prompt's own tokens only
  bool vae_tiling = false;            // overlapping tiles that are blended, as the reference cuts them
  int64_t fps = 16;                   // frames per second that a file names, 1 … 240
  std::optional<int64_t> preview;     // steps from one Callbacks::preview to the next; unset: none

  // Steps that reuse what an earlier one computed (docs/caches.md). Unset: as published for the model.
  sampling::StepCacheKind cache = sampling::StepCacheKind::kNone;
  std::optional<double> cache_threshold;   // not cfg; 0 reuses nothing
  std::optional<int64_t> cache_max_skips;  // mag, sen, drift: consecutive steps
  std::optional<double> cache_retention;   // mag, sen: share of the first steps that always compute
  std::string cache_ratios;                // mag: a model's name, a file or a list; empty: this model's
  std::string cache_coefficients;          // tea: likewise
  bool cache_retention_steps = false;      // tea: the variant with five first steps
  std::optional<int64_t> cache_interval;   // cfg; 1 reuses nothing
  bool cache_compare = false;              // denoise without the cache first and report the difference

  // Folder in which the run notes what it has done, for a run with `resume` to go on from, over any number of ranks; it
  // is removed when the video is complete. Empty: nothing is noted. Of a batch the first video's counts.
  std::string journal;
  // The folder of such a run that did not end: this one goes on from there, and is an Error where model or request
  // differ. Another process must not use it.
  std::string resume;

  std::string trace;              // file for a Perfetto trace of all ranks
  bool compare_one_rank = false;  // afterwards denoise again on one rank and report the difference
};

// What a run reports while it goes on. Called on rank 0's thread, except `load` and `cancelled`.
struct Callbacks {
  // A line for people ("12 advised, the checkpoint says 3").
  std::function<void(const std::string&)> note;
  // `done` of `total` bytes of a component's stored weights are packed. Called on the thread of the rank that reads
  // them, which may be any rank of the process.
  std::function<void(const std::string& component, int64_t done, int64_t total)> load;
  // Denoising step `done` of `total` has ended; it took `seconds`. Called with done = 0 when denoising begins.
  std::function<void(int64_t done, int64_t total, double seconds)> step;
  // Denoising step `step` (from 0) at `timestep` has ended with these latents, [videos, C, T, h, w] F32, normalised,
  // which the function may change: the next step goes on with what it leaves. Set on every process of a job or on none.
  std::function<void(int64_t step, double timestep, const TensorView& latents)> latents;
  // `done` of `total` layers of the current step are computed; a layer of two separate guidance branches counts twice.
  std::function<void(int64_t done, int64_t total)> layer;
  // With Request::preview, between steps: what the clip is expected to look like after `done` of them, few and small
  // frames [n, height, width, 3] U8; of a batch the first video's. Set on rank 0 or on none.
  std::function<void(int64_t done, const Tensor& frames)> preview;
  // `done` of `total` frames are decoded; 0 when decoding begins.
  std::function<void(int64_t done, int64_t total)> frames;
  // Returns true when the run should stop, which then throws Error. Asked between layers and between decoded frames, on
  // every rank.
  std::function<bool()> cancelled;
};

// The most memory that this process had resident while a component worked, file pages included.
struct ComponentMemory {
  std::string component;  // "text encoder", "transformer", "VAE", "whole"
  int64_t peak_bytes = 0;
  int64_t planned_bytes = 0;  // as the memory model predicted
};

// Seconds of a part of the run on rank 0, predicted by the planner and measured.
struct PredictedPart {
  std::string part;  // "load", "text encoder", "denoise", of which "denoise: computing" and others, "VAE decode"
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

// Seconds of a phase of the timing summary on rank 0: "Inference", "Inference/Denoise", …
struct TimedPhase {
  std::string phase;
  double seconds = 0;
};

// What a step cache did.
struct StepCacheReport {
  std::string name;          // "MagCache"
  std::string pattern;       // one letter per step: C computed, r reused
  int64_t reused = 0;        // steps
  double seconds_saved = 0;  // of denoising: see saving_measured
  // Of drift, where it reused something: relative L2 by which a full step that follows reused ones would have been off
  // with the residual that they reused, the largest; of a batch, of the video that is furthest off.
  std::optional<double> reuse_error;
  // With cache_compare, relative L2 to the run without the cache: of the final latents, and of every eighth value of
  // the velocity of a step, the furthest off, each from latents of its own run; of the video of which it is most. Steps
  // are those of the first segment; nothing where not all of them were denoised, as in a run that was resumed.
  std::optional<double> rel_l2;
  std::optional<double> velocity_rel_l2;
  // With cache_compare, in a run that was not resumed: against the run without the cache. Else seconds_saved is what
  // the reused steps would have taken at the rate of the others.
  bool saving_measured = false;
};

// Relative L2 of what kv_exchange_dtype changed in the keys and in the values of a rank, the largest of any rank, layer
// and step.
struct KVRounding {
  double keys = 0, values = 0;
};

struct Video {
  Tensor frames;     // [num_frames, height, width, 3] U8 RGB; empty where they went to a sink, and on ranks but 0
  int64_t seed = 0;  // of the initial noise: the request's, or what was drawn
  Tensor latents;    // [1, C, T, h, w] F32, final, normalised; on every rank
  // About the whole run. In a batch, numbers are the same in all videos; text and lists are in the first.
  double denoise_seconds = 0;                 // of this rank, all steps
  std::string layout;                         // how the ranks were used, in words; rank 0
  std::vector<TimedPhase> phases;             // each before its parts; rank 0
  std::string timing;                         // the timing summary, memory, prediction and step cache included; rank 0
  std::string summary;                        // its most important lines; rank 0
  std::vector<ComponentMemory> memory;        // in the order of time, the whole last; rank 0
  std::vector<PredictedPart> predicted;       // in the order of time; rank 0, empty where nothing was predicted
  int64_t bytes_sent = 0;                     // by attention, summed over ranks
  std::optional<KVRounding> kv_rounding;      // with kv_exchange_dtype, where keys and values left their rank
  std::optional<double> one_rank_rel_l2;      // with compare_one_rank
  std::optional<StepCacheReport> step_cache;  // on rank 0, with a cache
};

// Every function throws Error, with one sentence, for everything that a user can mend. An Error leaves the Model as it
// was: the next request may follow.
class ZOETROPE_API Model {
 public:
  // Reads and checks configs, names and shapes of all tensors, and the tokenizer; reads no weights. `usual`: a budget
  // is spent for its guidance_scale and guidance_scale_2.
  static Model open(const std::filesystem::path& folder, const ModelOptions& options = {}, const Request& usual = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // Runs over options.ranks threads of this process, or as its rank of an MPI job when started by mpirun. There a rank
  // throws its own failure, the others an Error that names it, and MPI is left running: comm::finish_mpi() ends it.
  // Calls from several threads follow one another; one from a callback or a sink of the model's throws Error.
  Video generate(const Request& request, const Callbacks& callbacks = {});
  // Likewise, with the frames into a sink while later ones are still being decoded: video_file("clip.mp4").
  Video generate(const Request& request, const OpenSink& sink, const Callbacks& callbacks = {});
  // The part of one rank, for programs that bring their own communicator. Collective over `world`; the ranks of a
  // process share one Model and one copy of the weights. Rank 0 opens its sink; without one it returns the
  // frames. The other ranks return before rank 0 and wait for it in their next call, for comm_timeout at most.
  Video generate(comm::Communicator& world, const Request& request, const OpenSink& sink = {},
                 const Callbacks& callbacks = {});

  // Several videos that are denoised together, each with the bits that it has alone in the same layout. Requests differ
  // in prompt, negative_prompt, seed and latents only. `sinks`: one per request, or none for frames in memory.
  std::vector<Video> generate(const std::vector<Request>& requests, const std::vector<OpenSink>& sinks = {},
                              const Callbacks& callbacks = {});
  std::vector<Video> generate(comm::Communicator& world, const std::vector<Request>& requests,
                              const std::vector<OpenSink>& sinks = {}, const Callbacks& callbacks = {});

  // One line per fact, before anything runs: model, size, how the ranks are used, planned memory, predicted time.
  std::string describe(const Request& request) const;
  // Frees what keep_weights kept. Between runs, and on every process of a job alike.
  void release_weights();

 private:
  struct ZOETROPE_PRIVATE Impl;
  ZOETROPE_PRIVATE explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope
