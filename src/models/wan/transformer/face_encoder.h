// The face branch of Animate before the transformer's blocks (wan.md sections 14.3, 14.4): frames of a face to motion
// vectors, those to face tokens. Both depend on the face alone, so they are computed once for a clip. Knows no ranks:
// a frame's vector does not depend on other frames, so ranks may share frames out.
#pragma once

#include <cstdint>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/wan/transformer/weights.h"
#include "tensor/probe.h"

namespace zoetrope::wan {

// pixels [3, z, z] F32 in [−1, 1] → vector [vector_dim] F32, of the model's precision. The probe sees
// "motion.res_blocks.0", … and "motion.conv_out", [c, h, w] F32, "motion.feature" [motion_dim], "motion.vector".
void encode_motion(Stream& stream, const TransformerWeights& weights, const TensorView& pixels,
                   const TensorView& vector, const Probe& probe = {});

// Motion vectors [S, vector_dim] F32 of consecutive frames → tokens [T, heads + 1, d] of the model's dtype, T of
// face_token_frames(S). The probe sees "face.conv1_local" [heads·g, S], "face.conv2" and "face.conv3" [heads, g, S'],
// all F32, and "face.tokens".
void encode_face(Stream& stream, const TransformerWeights& weights, const TensorView& vectors, const TensorView& tokens,
                 const Probe& probe = {});

// Tokens [samples, T, heads + 1, d] of some samples, the last `unconditional` of which show a black face in every
// frame. vectors [S, vector_dim] F32; black [vector_dim] F32, the vector of a black frame, or null where nobody shows
// it.
Tensor encode_faces(Stream& stream, const TransformerWeights& weights, const TensorView& vectors,
                    const TensorView& black, int64_t samples, int64_t unconditional);

// Of `frames` face frames: two convolutions over time with stride 2.
inline int64_t face_token_frames(int64_t frames) { return ((frames - 1) / 2 + 1 - 1) / 2 + 1; }

// Floating-point operations of one frame, and of the tokens of `frames` frames.
double motion_flop(const FaceConfig& face);
double face_flop(const FaceConfig& face, int64_t d, int64_t frames);

// Bytes of memory that encoding takes besides weights and results.
int64_t face_encoding_bytes(const FaceConfig& face, DType dtype, int threads);

}  // namespace zoetrope::wan
