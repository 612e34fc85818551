// The stage between prompt and denoising: pictures and videos through the image encoder and the VAE's encoder, over the
// ranks that share the rows of a frame; afterwards every rank has the conditions.
#pragma once

#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/inputs/conditions.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/stages/model_weights.h"
#include "pipeline/stages/stage.h"

namespace zoetrope::pipeline {

// Whether there is something to encode.
bool has_conditions(const Stage& stage, const Inputs& inputs);

// What Animate encodes once, for all segments.
struct Character {
  Tensor image_rows;  // [1, S, D]
  Tensor reference;   // [4 + C, 1, h, w]: ones, and the picture
};

// Collective over `world`, as the next; stage.options.vae_parallel says how many ranks share a frame. The ranks of this
// process share `shared`; the encoder's weights are released before this returns. Animate's, segment by segment in this
// order. `before`: the last frames of the segment before, [V, H, W, 3] F32 in [−1, 1] for one video of the batch after
// another, the same on every rank; null for the first segment. `dumps`: one for each video. The first call also fills
// `character`.
Conditions encode_segment(const Stage& stage, const Inputs& inputs, comm::Communicator& world, SharedVae& shared,
                          const Dumps& dumps, int64_t segment, const TensorView& before, Character& character);

// Of other models; without conditions it does nothing.
Conditions encode_conditions(const Stage& stage, const Inputs& inputs, comm::Communicator& world, SharedVae& shared,
                             const Dumps& dumps);

}  // namespace zoetrope::pipeline
