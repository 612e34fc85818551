// The face of a recorded case as tokens. For tests only.
#pragma once

#include <cstdint>

#include "models/wan/transformer/face_encoder.h"

namespace zoetrope::wan::testing {

// pixels [B, 3, S, z, z] F32 → [B, T, face tokens, d] of the model's dtype.
inline Tensor face_tokens(Stream& stream, const TransformerWeights& weights, const TensorView& pixels,
                          const Probe& probe = {}) {
  const FaceConfig& face = *weights.config.face;
  const int64_t batch = pixels.extent(0), frames = pixels.extent(2), d = weights.config.inner_dim();
  Tensor tokens = Tensor::uninitialized(weights.dtype, {batch, face_token_frames(frames), face.tokens(), d});
  const Tensor vectors = Tensor::uninitialized(DType::kF32, {batch, frames, face.vector_dim});
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t s = 0; s < frames; ++s)
      encode_motion(stream, weights, pixels.select(0, b).select(1, s), vectors.view().select(0, b).select(0, s), probe);
  for (int64_t b = 0; b < batch; ++b)
    encode_face(stream, weights, vectors.view().select(0, b), tokens.view().select(0, b), probe);
  observe(probe, "motion.basis", weights.face.motion_basis);
  return tokens;
}

}  // namespace zoetrope::wan::testing
