// What a Wan run holds, from its configs, a size and dtypes alone: the plain numbers that the planner's memory model
// adds up. Reads no weights; every number is that of rank 0, which has the most.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zoetrope/tensor.h"

#include "kernels/conv/frame_conv.h"
#include "models/encoders/config.h"
#include "models/wan/config.h"
#include "planner/workload.h"

namespace zoetrope::wan {

// The dtype that most of each component's weights are stored as: those of the published 2.1 folders, unless the files
// say otherwise.
struct StoredDTypes {
  DType transformer = DType::kF32, text_encoder = DType::kF32, vae = DType::kF32, image_encoder = DType::kF32;
};

// All of a text encoder but its table of embeddings, of which a prompt reads its own rows.
struct TextLayers {
  int64_t file_bytes = 0;
  bool decoded = false;  // before they are multiplied: their files do not have them as they are used
  friend bool operator==(const TextLayers&, const TextLayers&) = default;
};

// The configs of a model and how its weights are read.
struct ModelConfigs {
  std::vector<TransformerConfig> experts;
  encoders::TextEncoderConfig text_encoder;
  VaeConfig vae;
  std::optional<encoders::ClipVisionConfig> image_encoder;
  StoredDTypes stored;
  int64_t transformer_file_bytes = 0;     // of the largest expert; 0: its parameters in their dtype
  std::optional<TextLayers> text_layers;  // of files; unset: its parameters in their dtype
  bool mapped = true;                     // files are; formulas fill buffers
  bool takes_pictures = false;            // or videos, so that the VAE's encoder may be used
  // Further elements per thread while a LoRA is added to a weight of the transformer; 0: without LoRA.
  int64_t merge_scratch = 0;
};

struct RunSize {
  int64_t height = 0, width = 0, frames = 0;  // of the video, or of each of its segments
  int64_t segments = 1;                       // Animate
  bool image = false;                         // a picture is given to a model for which it is optional
  bool control_video = false;                 // VACE: a video is given
  int64_t inputs_bytes = 0;                   // of a process: pictures and videos as they were read
  int64_t videos = 1;                         // of a batch: they are denoised together
  int64_t prompts = 1;                        // of all videos; 2 of each with guidance: one per branch
  int64_t text_rows = 512;                    // of a prompt's conditioning
  int64_t image_rows = 0;                     // of a prompt's image; 0: what the published encoder makes
  int64_t reference_images = 0;               // VACE, Animate: each takes a latent frame before the video's
  int64_t timesteps = 0;                      // different values in a step; 0: one per prompt
  bool keeps_residual = false;                // step caches: of the transformer's blocks
  int64_t kept_latents = 0;                   // copies of the latents
  int64_t dumped_latents = 0;                 // copies of them for a dump, of all steps of a segment
  bool branches_apart = false;                // guidance branches go through the blocks one after another
  std::vector<int64_t> prompt_tokens;         // of each prompt, where they are known: text_rows at most
  int64_t kv_vector_bytes = 0;  // of a key or value of one head as it travels between ranks; 0: as computed
  bool int8_attention = false;  // self-attention is multiplied in int8
  DType transformer = DType::kBF16, text_encoder = DType::kF32, vae = DType::kF32;
  kernels::ConvAlgorithm vae_convolution = kernels::ConvAlgorithm::kAuto;
  bool vae_tiling = false;
  bool previews = false;           // are decoded between steps
  int64_t kept_frame_bytes = 0;    // per value of a frame, to the end: 4 + 1 in a dump, 1 in memory or a .gif, a sink's
  bool keeps_transformer = false;  // weights between runs
  bool keeps_vae = false;
  int64_t frames_waiting = 0;       // between the decoder and the file, at most
  int64_t video_encoder_bytes = 0;  // of the file's frames
  int64_t weight_memory = 0;  // bytes for an expert's packed weights, or a tensor rank's part; 0: all, none streamed
  bool weight_cache = false;  // what is streamed is read packed; else it is packed again
  bool as_stored = false;     // an expert's weights: its file, and what is packed for use
  double share_of_first = 1;  // of the steps, those of the first of two experts
  int sharers = 1;  // processes with one copy of weights: an expert's where all are in memory, or its file; the VAE's
  int threads = 1;  // of the process
  // Before anything is read: code and libraries, settings, the tokenizer, what the kernels generate.
  int64_t program_bytes = 70'000'000;
};

// Bytes per element of what a transformer's weights are packed from, as streamed_bytes() takes them.
int64_t packed_from_bytes(const ModelConfigs& configs);

// Of a text encoder: the weights of its layers, and how the question's are stored.
int64_t text_layer_weights(const encoders::TextEncoderConfig& config);
TextLayers text_layers(const ModelConfigs& configs);

// Rows of the image encoder that a prompt has; 0 where the model looks at none.
int64_t image_rows(const TransformerConfig& config, const RunSize& size);

// Frames that the VAE encodes before denoising, clip by clip: what the transformer's layers take says it, and whether a
// picture or a video is given.
std::vector<int64_t> encoded_clips(const ModelConfigs& configs, const RunSize& size);

// Sizes as checked against the model (multiples of its patches); `ranks_here` ranks share a process.
planner::Workload workload(const ModelConfigs& configs, const RunSize& size, const parallel::ParallelLayout& layout,
                           int ranks_here = 1);

}  // namespace zoetrope::wan
