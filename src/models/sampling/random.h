// The noise of a seed: torch.randn on PyTorch's CPU generator, value for value up to the last bits of log
// and cos. Not for the CUDA generator, whose values depend on the launch geometry.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>

#include "tensor/half.h"

namespace zoetrope::sampling {

// torch.Generator("cpu").manual_seed(seed); successive draws continue one stream as they do there.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);  // the low 32 bits count

  void randn(std::span<float> out);     // dtype=torch.float32, whole tensor in row-major order
  void randn(std::span<BFloat16> out);  // dtype=torch.bfloat16: not the rounded float32 draw where size % 16 ≠ 0

 private:
  float uniform();  // [0, 1), 24 bits
  double uniform53();
  double small_normal();
  void block(float* out);  // 16 fresh values

  std::mt19937 engine_;
  std::optional<double> spare_;  // the sine of the last pair of a small draw
};

}  // namespace zoetrope::sampling
