// What the CLIP tower holds in memory while it runs, for who plans ahead. Formulas over the config, next to the code
// that they describe; clip_vision_test.cpp holds them against what is booked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

// Scratch of an encode() of so many pictures: activations, and what the matrix products and attention work in. Booked
// in one block, so exact.
size_t clip_workspace_bytes(const ClipVisionConfig& config, int64_t pictures, DType dtype, int threads);

// File pages that are mapped at a time, at most: half a layer (attention or feed-forward), which is let go before the
// next half.
size_t clip_mapped_bytes(const ClipVisionConfig& config, DType stored);

// Where weights cannot be used as they are stored (F16, F64, made by formula, not aligned): the buffer for the matrices
// of one product, in the dtype computed with. Part of the workspace then, on top of the above.
size_t clip_buffer_bytes(const ClipVisionConfig& config, DType dtype);

}  // namespace zoetrope::wan
