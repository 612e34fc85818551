#include "models/wan/transformer/timestep.h"

#include <cmath>

#include "base/error.h"

namespace zoetrope::wan {

namespace {

// f_k as the reference has it in memory. exp() rounded to nearest gives the same bits for every k but one: at n = 128,
// the only length published models have, the reference's vector exp rounds f_12 up although the exact value lies 0.48
// ulp above the lower neighbour. Without this the time embedding is 10 times as far from recorded runs as float32
// rounding explains (timesteps 437, 770, 923, 999; at 875 the angle happens to round to the same float).
float frequency(int64_t k, int64_t n) {
  constexpr double kMaxPeriod = 10000;
  const float exponent = static_cast<float>(-std::log(kMaxPeriod)) * static_cast<float>(k) / static_cast<float>(n);
  const auto nearest = static_cast<float>(std::exp(static_cast<double>(exponent)));
  return n == 128 && k == 12 ? std::nextafter(nearest, 1.0f) : nearest;
}

}  // namespace

void timestep_sinusoid(std::span<const float> timesteps, const TensorView& out) {
  ZT_CHECK(out.dtype() == DType::kF32 && out.contiguous() && out.rank() == 2 && out.extent(1) % 2 == 0);
  ZT_CHECK(out.extent(0) == static_cast<int64_t>(timesteps.size()));
  const int64_t half = out.extent(1) / 2;
  for (int64_t k = 0; k < half; ++k) {
    const float f = frequency(k, half);
    for (size_t b = 0; b < timesteps.size(); ++b) {
      float* row = out.data<float>() + static_cast<int64_t>(b) * 2 * half;
      const float angle = timesteps[b] * f;
      row[k] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[half + k] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace zoetrope::wan
