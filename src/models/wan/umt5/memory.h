// What a text encoder holds in memory while it runs, for who plans ahead. Formulas over the config, next to the code
// that they describe; umt5_test.cpp holds them against what is booked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

struct TextEncoderUse {
  int64_t rows = 0;     // tokens of all prompts together
  int64_t longest = 0;  // tokens of the longest prompt
  DType dtype = DType::kBF16;
  int parts = 1;    // ranks that share a layer
  int threads = 1;  // of one rank
};

// Scratch of one rank: activations, and what the matrix products work in. Booked in one block, so exact.
size_t text_encoder_workspace_bytes(const TextEncoderConfig& config, const TextEncoderUse& use);

// Of that, what its ops take in turn.
size_t text_encoder_scratch_bytes(const TextEncoderConfig& config, const TextEncoderUse& use);

// File pages that one rank has mapped at a time, at most: half a layer (attention or feed-forward), which is let go
// before the next half. Ranks of one process that share a map have the sum of their parts.
size_t text_encoder_mapped_bytes(const TextEncoderConfig& config, DType stored, int parts = 1);

// Where weights cannot be used as they are stored (F16, F64, made by formula, not aligned): a rank's buffer for the
// matrices of one product, in the dtype computed with. Part of the workspace then, on top of the above.
size_t text_encoder_buffer_bytes(const TextEncoderConfig& config, DType dtype, int parts = 1);

}  // namespace zoetrope::wan
