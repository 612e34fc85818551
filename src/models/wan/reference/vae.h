// The VAE in float64, as wan.md section 4 defines it over the whole clip at once: causal convolutions with zeros before
// the first frame, doubling and halving in time for every frame but the first. No streaming, tiles or threads' chunks.
#pragma once

#include "models/reference/rows.h"
#include "models/wan/config.h"

namespace zoetrope::wan::reference {

using namespace zoetrope::reference;  // its arithmetic

// Parameters are rounded to `parameters`, the result of every op to `values`: the second is a model in that dtype as
// the reference implementation runs it, one op after the other.
struct VaeRounding {
  Rounding parameters = Rounding::kFloat32;
  Rounding values = Rounding::kFloat32;
};

// Latents [z, T, h, w] F32, any strides, to the video [F, H, W, 3], clamped to [−1, 1]; the video to moments
// [2·z, T, h, w]. Sums are in `Real`, float or double, and so are the results.
template <typename Real>
Tensor decode(const VaeConfig& config, const Parameters& parameters, const TensorView& latents,
              const VaeRounding& rounding);
template <typename Real>
Tensor encode(const VaeConfig& config, const Parameters& parameters, const TensorView& video,
              const VaeRounding& rounding);

}  // namespace zoetrope::wan::reference
