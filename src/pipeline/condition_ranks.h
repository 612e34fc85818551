// The stage between prompt and denoising: pictures and videos through the image encoder and the VAE's encoder, over the
// ranks that share the rows of a frame; afterwards every rank has the conditions.
#pragma once

#include "zoetrope/communicator.h"

#include "pipeline/conditions.h"
#include "pipeline/dump.h"
#include "pipeline/inputs.h"
#include "pipeline/model_weights.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

// Whether there is something to encode.
bool has_conditions(const Stage& stage, const Inputs& inputs);

// Collective over `world`; stage.options.vae_parallel says how many ranks share a frame. Without conditions
// it does nothing. The ranks of this process share `shared`; the encoder's weights are released before this returns.
Conditions encode_conditions(const Stage& stage, const Inputs& inputs, comm::Communicator& world, SharedVae& shared,
                             Dump& dump);

}  // namespace zoetrope::pipeline
