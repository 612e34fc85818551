// Latents of a preview: what a run in mid-way is expected to end with, made small. Each of its latent frames is decoded
// as if it were the first of a clip, which costs a quarter of one within a clip.
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

// Cells of a latent frame that are averaged into one, in each direction, so that no side of a decoded preview has more
// than 256 pixels.
int64_t preview_cells(const VaeConfig& config, int64_t latent_height, int64_t latent_width);

// Frames that a preview of `latent_frames` has: all up to 24, else 24 that are evenly spread, the first and the last
// among them.
int64_t preview_frames(int64_t latent_frames);

// latents − noise·velocity, which is the clip without noise where the velocity is right: x_t = (1 − σ)·x_0 + σ·ε and
// v = ε − x_0. latents, velocity [1, C, T, h, w] F32, any strides → [1, C, preview_frames(T), ⌈h/cells⌉, ⌈w/cells⌉].
Tensor preview_latents(const VaeConfig& config, const TensorView& latents, const TensorView& velocity, double noise);

}  // namespace zoetrope::wan
