// Latents between the VAE and the diffusion model: the mean of what the encoder says, shifted and scaled per channel
// (wan.md section 4.5). The reciprocal of the deviation is formed first, in float32, as the reference does.
#pragma once

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

// The mean of the distribution: the first half of the channels. moments [2·z, T, h, w] → [z, T, h, w], or both with a
// leading 1. A view, not a copy.
TensorView mode(const TensorView& moments);

// out = (latents − mean)·(1/std) and its inverse out = latents/(1/std) + mean. [z, T, h, w] or with a leading 1, F32,
// any strides; out may be latents.
void normalize_latents(const VaeConfig& config, const TensorView& latents, const TensorView& out);
void denormalize_latents(const VaeConfig& config, const TensorView& latents, const TensorView& out);

}  // namespace zoetrope::wan
