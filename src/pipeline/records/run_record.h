// What a run has done after a step or a decoded frame: all that another process needs to go on from there, with any
// number of ranks. Plain values and their bytes; journal.h keeps them in a folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/error.h"
#include "zoetrope/model.h"
#include "zoetrope/tensor.h"

#include "models/sampling/solver.h"

namespace zoetrope::pipeline {

// Of the denoising loop, between two steps.
struct DenoiseState {
  sampling::SolverState solver;  // solver.next: the steps that are done
  // Of a step cache; empty without one.
  std::vector<double> cache;     // what decides
  std::vector<float> embedding;  // of the step before, where it is compared
  // Of the drift cache, below 0: none. Of the last full step; as reported.
  double reuse_error = -1, largest_reuse_error = -1;
  std::string pattern;  // as StepCacheReport has it
  double full_seconds = 0, reused_seconds = 0;
  int64_t full_step = -1;  // the last step that ran the whole model
  Tensor full_latents;     // as that step found them
  Tensor velocity;         // of that step, where steps reuse it
  Tensor branches;         // of both branches, where steps derive one of them
};

// Where the decoder is between two latent frames. What its layers remember is in files beside the record.
struct DecodeState {
  int64_t segment = 0;
  int64_t video = 0;          // of a batch
  int64_t latent_frames = 0;  // of it that are decoded
  int64_t frames = 0;         // of it that are decoded, those included that the output leaves out
  int parts = 1;              // ranks that shared a frame: each has a file
  int64_t generation = 0;     // of these files
};

// Which run it is: only one with the same settings and files can go on.
struct RunIdentity {
  std::map<std::string, std::string> settings;  // that decide the video
  std::map<std::string, std::string> files;     // of model and inputs, with their hashes
  std::string version;                          // of the program
  std::vector<int64_t> seeds;                   // of each video
};

// The keys that have other values; one that is missing has an empty one.
std::vector<std::string> differing(const std::map<std::string, std::string>& a,
                                   const std::map<std::string, std::string>& b);

// A record that only another version of the program can read.
class OtherFormat : public Error {
 public:
  using Error::Error;
};

struct RunRecord {
  RunIdentity run;

  int64_t segment = 0;
  bool denoised = false;  // latents are the final ones of this segment
  Tensor latents;         // [videos, C, T, h, w] F32; empty before the first step of the first segment
  DenoiseState denoise;   // while !denoised and a step is done
  std::optional<StepCacheReport> step_cache;  // of all segments that are denoised
  // [videos·V, H, W, 3]: frames that the next segment begins with, as far as they are decoded.
  Tensor tail;
  std::optional<DecodeState> decode;
  std::vector<uint64_t> frames;  // checksums of the frames in the output so far, in its order

  int64_t steps_done() const { return denoise.solver.next; }

  // A safetensors file whose metadata has a hash of everything. from_bytes() throws Error "FILE: …" for one that is cut
  // short, damaged, or of a newer format.
  std::string to_bytes() const;
  static RunRecord from_bytes(const std::string& bytes, const std::string& file);
};

}  // namespace zoetrope::pipeline
