// The sinusoid that a timestep enters the transformer as (wan.md section 2.3).
#pragma once

#include <span>

#include "zoetrope/tensor.h"

namespace zoetrope::wan {

// out[b] = [cos(τ_b·f_0), …, cos(τ_b·f_{n−1}), sin(τ_b·f_0), …], f_k = exp(−ln(10000)·k/n), n = freq_dim / 2.
// out [B, freq_dim] F32 contiguous. Frequencies and angles are rounded to float32 as in the reference: at τ = 999 the
// last bit of f moves the angle by up to 6e-5, so higher precision would be a different function.
void timestep_sinusoid(std::span<const float> timesteps, const TensorView& out);

}  // namespace zoetrope::wan
