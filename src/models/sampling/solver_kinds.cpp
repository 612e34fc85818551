#include "models/sampling/solver_kinds.h"

#include <cmath>

#include "tensor/half.h"

namespace zoetrope::sampling {

float log_snr(float sigma) { return std::log(1.0f - sigma) - std::log(sigma); }

float round_bf16(float value) { return to_float(to_bfloat16(value)); }

// PyTorch casts a 0-dim σ to the dtype of v before it multiplies on the CPU: rounding the product alone misses the
// recorded bfloat16 steps by up to 2^-8.
void predict_clean(float sigma, VelocityDType dtype, std::span<const float> velocity, std::span<const float> sample,
                   std::span<float> clean) {
  if (dtype == VelocityDType::kBF16) {
    for (size_t i = 0; i < sample.size(); ++i) clean[i] = sample[i] - round_bf16(round_bf16(sigma) * velocity[i]);
  } else {
    for (size_t i = 0; i < sample.size(); ++i) clean[i] = sample[i] - sigma * velocity[i];
  }
}

}  // namespace zoetrope::sampling
