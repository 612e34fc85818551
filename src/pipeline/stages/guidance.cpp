#include "pipeline/stages/guidance.h"

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::pipeline {

void guide(std::span<const float> conditional, std::span<const float> unconditional, double guidance_scale, DType dtype,
           std::span<float> out) {
  ZT_CHECK(conditional.size() == out.size() && unconditional.size() == out.size());
  const auto scale = static_cast<float>(guidance_scale);
  if (dtype == DType::kF32) {
    for (size_t i = 0; i < out.size(); ++i) {
      const float difference = conditional[i] - unconditional[i];
      out[i] = unconditional[i] + scale * difference;
    }
    return;
  }
  const auto round = [](float value) { return to_float(to_bfloat16(value)); };
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = round(unconditional[i] + round(scale * round(conditional[i] - unconditional[i])));
  }
}

}  // namespace zoetrope::pipeline
