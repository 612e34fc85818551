// Classifier-free guidance: v = v_u + g·(v_c − v_u), rounded like the reference does in the model's dtype (wan.md
// section 7.1).
#pragma once

#include <span>

#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

// Values are float32; with `dtype` BF16 each of the three operations is rounded to bf16. out may be one of the inputs.
void guide(std::span<const float> conditional, std::span<const float> unconditional, double guidance_scale, DType dtype,
           std::span<float> out);

}  // namespace zoetrope::pipeline
