// What the encoders hold in memory while they run and the operations they execute, for who plans ahead. Formulas over
// the config; umt5_test.cpp and clip_vision_test.cpp compare the bytes with what is booked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "models/encoders/config.h"

namespace zoetrope::encoders {

// ---- text encoder ----

struct TextEncoderUse {
  int64_t rows = 0;     // tokens of all prompts together
  int64_t longest = 0;  // tokens of the longest prompt
  DType dtype = DType::kBF16;
  int parts = 1;    // ranks that share a layer
  int threads = 1;  // per rank
};

// Scratch of one rank: activations, and what the matrix multiplications work in. Booked in one block, so exact.
size_t text_encoder_workspace_bytes(const TextEncoderConfig& config, const TextEncoderUse& use);

// Of that, the scratch of its operations, which use it one after another.
size_t text_encoder_scratch_bytes(const TextEncoderConfig& config, const TextEncoderUse& use);

// Weights whose file pages one rank has mapped at a time, at most: half a layer (attention or feed-forward), which is
// released before the next half. A rank has its rows of a matrix. Of o and wo, whose columns are divided, a process
// maps all pages, because the system maps those around what is read; its `here` ranks share them.
int64_t text_encoder_mapped_weights(const TextEncoderConfig& config, int parts = 1, int here = 1);

// Where weights cannot be used as they are stored (F16, F64, quantised, computed by formula, not aligned): a rank's
// buffer for the matrices of one multiplication, in the compute dtype. Part of the workspace then, on top of the above.
size_t text_encoder_buffer_bytes(const TextEncoderConfig& config, DType dtype, int parts = 1);

// N ids, without padding: per layer 2·N·(4·d·a + 3·d·f) + 4·N²·a, a = heads × d_kv, f = d_ff.
double text_encoder_flop(const TextEncoderConfig& config, int64_t ids);

// ---- CLIP vision tower ----

// Scratch of an encode() of n pictures: activations, and what matrix multiplications and attention work in. Booked in
// one block, so exact.
size_t clip_workspace_bytes(const ClipVisionConfig& config, int64_t pictures, DType dtype, int threads);

// As above, of the tower.
size_t clip_mapped_bytes(const ClipVisionConfig& config, DType stored);
size_t clip_buffer_bytes(const ClipVisionConfig& config, DType dtype);

// One picture through the layers that are used, without the patch embedding.
double image_encoder_flop(const ClipVisionConfig& config);

}  // namespace zoetrope::encoders
