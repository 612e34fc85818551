// Animate's face branch over ranks: every rank encodes some of the face's frames, and then has the vectors of all.
#pragma once

#include <functional>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "pipeline/inputs/conditions.h"

namespace zoetrope::pipeline {

// pixels [3, size, size] F32 in [−1, 1] → vector [width] F32. May throw.
using EncodeFrame = std::function<void(const TensorView& pixels, const TensorView& vector)>;

// Vectors of all frames and, with `black`, of one that is black, [S, width] or [S + 1, width] F32, on every rank.
// Collective over `world`; the frames are the same on every rank. A frame's vector has the same bits whichever rank
// computes it.
Tensor vectors_of_face(const FaceFrames& frames, bool black, int64_t width, comm::Communicator& world,
                       const EncodeFrame& encode);

}  // namespace zoetrope::pipeline
