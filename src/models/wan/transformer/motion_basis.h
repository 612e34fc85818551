// The directions that a face's motion is a sum of.
#pragma once

#include "zoetrope/tensor.h"

namespace zoetrope::wan {

// Q of the QR decomposition of weight + 1e-8, [e, m] F32 with e ≥ m. Signs are those of Householder reflections as
// LAPACK makes them: R has diagonal entries of both signs, and a basis with positive ones is another motion (wan.md
// section 14.3). Computed in float64.
Tensor motion_basis(const TensorView& weight /* [e, m] F32 */);

}  // namespace zoetrope::wan
