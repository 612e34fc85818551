// A run as plain numbers: what is resident and for how long, from which the memory model makes phases. A model family
// fills it from its configs, a size and dtypes (models/wan/workload.h); nothing here names a layer or reads a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/layout.h"
#include "parallel/shards.h"
#include "planner/bytes.h"

namespace zoetrope::planner {

// Weights of one component.
struct WeightBytes {
  int64_t parameters = 0;
  Bytes stored;     // in files
  Bytes resident;   // as computed with
  Bytes in_flight;  // in addition while they are loaded: pages of the file, weights not yet packed
};

struct Workload {
  parallel::ParallelLayout layout;
  parallel::Softmax softmax = parallel::Softmax::kOnline;
  int ranks_here = 1;  // that share this process; all others are in processes of their own

  bool keeps_transformer = false;  // weights of all experts stay between runs
  int64_t segments = 1;            // of a run: they stay between these
  bool keeps_vae = false;          // those of the VAE
  Bytes kept_vae_encoder;          // with keeps_vae, whether or not this run encodes; zero for models without pictures

  Bytes program;   // a process before anything is read: code, libraries, settings, tokenizer, stacks
  Bytes per_rank;  // of a rank from beginning to end: latents, the rows of the prompt
  Bytes inputs;    // of a process from beginning to end: pictures and videos that condition the run

  struct TextEncoder {
    WeightBytes weights;  // resident: what stays for the whole pass; in_flight: a rank's part of the layer on its way
    Bytes workspace;      // of a rank
  } text;

  // What pictures and videos become before denoising begins; all zero where there are none.
  struct Conditions {
    WeightBytes image_weights;  // of an image encoder, which rank 0 alone runs; in_flight: the layer on its way
    Bytes image_workspace;
    WeightBytes weights;  // of the VAE's encoder
    Bytes workspace;      // of a rank that encodes: caches and frames in work
    Bytes making;         // of a rank: what the encoder makes, before and after it is gathered
    Bytes made;           // of a rank, to the end of denoising: the conditions, and the input that they are part of
  } conditions;

  // Experts take turns; one is resident.
  struct Expert {
    std::string name;     // "transformer", "transformer_2"
    WeightBytes weights;  // resident: of a process, the parts of all its tensor coordinates
    // Keys and values of the prompts of one data and one tensor coordinate; shared by its ranks in a process.
    Bytes context;
    Bytes context_making;  // in addition while they are computed, of a rank
    Bytes workspace;       // of a rank, booked for a size
  };
  std::vector<Expert> experts;

  // Of a rank while denoising.
  // The tokens of all context ranks, the batch of one data and the heads of one tensor coordinate.
  parallel::Sizes attention;
  Bytes kernel_scratch;  // packed keys and tiles of its threads
  Bytes step;            // the velocity of its own tokens, of all tokens, of the latents

  struct Vae {
    WeightBytes weights;
    Bytes workspace;      // of a rank: caches and frames in work
    Bytes output;         // of rank 0: frames on their way into the file
    Bytes video_encoder;  // of rank 0: of the file's frames
    Bytes preview;        // of rank 0 while denoising: the decoder and its frames for previews; zero without
  } vae;

  // Of rank 0 and a segment, to the end of the run.
  struct Kept {
    Bytes steps;   // velocities and latents for a dump
    Bytes frames;  // for a dump, a .gif, a caller
  } kept;
};

}  // namespace zoetrope::planner
