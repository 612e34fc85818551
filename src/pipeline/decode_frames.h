// The decoding stage of a run: latents to frames, over the ranks that share the rows of a frame, and frames to the
// output while later ones are still being decoded.
#pragma once

#include <functional>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"
#include "zoetrope/video.h"

#include "pipeline/dump.h"
#include "pipeline/generate_options.h"
#include "pipeline/model_weights.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

// Where the frames of a video go: rank 0 has a writer, the others null.
struct FrameOutput {
  FrameSink* sink;
  Dump& dump;
  std::function<void()> finish{};  // called before the next video is decoded, so not of the last one
};

// Collective over `world`. Every rank has the whole latents, [videos, C, T, h, w] F32, normalised as the transformer
// makes them; one video is decoded after another, into an output of its own. Ranks that do not decode return at once,
// the others when rank 0 has their last rows: nobody waits for the end of the writing. Gathers all traces. `shared` is
// for the ranks of this process.
void decode_frames(const Stage& stage, comm::Communicator& world, SharedVae& shared, const TensorView& latents,
                   const std::vector<FrameOutput>& outputs);

}  // namespace zoetrope::pipeline
