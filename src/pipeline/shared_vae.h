// Half of the VAE as the ranks of a process share it: the encoder for what conditions a run, the decoder for its
// frames.
#pragma once

#include <memory>

#include "models/wan/vae/vae_weights.h"
#include "pipeline/generate_options.h"
#include "pipeline/shared_once.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

using SharedVae = SharedOnce<const wan::VaeWeights>;

// Reads it where no other rank of the process has it; notes the seconds. Throws Error where files are not what they
// were when they were opened.
std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, SharedVae& shared, wan::VaeParts part);

// Compute threads of each of `ranks_here` ranks that share a stage in this process.
int threads_of_each(const GenerateOptions& options, int ranks_here);

}  // namespace zoetrope::pipeline
