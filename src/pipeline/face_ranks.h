// Animate's face branch over ranks: every rank encodes some of the face's frames, and then has the tokens of all.
#pragma once

#include <functional>

#include "zoetrope/communicator.h"

#include "device/stream.h"
#include "models/wan/transformer/weights.h"
#include "pipeline/conditions.h"

namespace zoetrope::pipeline {

// Which of the transformer's samples a rank has.
struct FaceSamples {
  int64_t count = 1;
  int64_t unconditional = 0;       // the last ones: their face is black
  bool any_unconditional = false;  // on some rank
};

// Collective over `world`; the frames are the same on every rank → tokens [count, T, face tokens, d] of the
// model's dtype. A frame's vector has the same bits whichever rank computes it. `between` is called before every frame
// and may throw.
Tensor encode_faces(const wan::TransformerWeights& weights, const FaceFrames& frames, const FaceSamples& samples,
                    comm::Communicator& world, Stream& stream, const std::function<void()>& between);

}  // namespace zoetrope::pipeline
