// The decoding stage of a run: latents to frames, and frames to the output while later ones are still being made.
#pragma once

#include "zoetrope/tensor.h"

#include "io/video.h"
#include "pipeline/dump.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

// latents [1, C, T, h, w] F32, normalised as the transformer makes them.
void decode_frames(const Stage& stage, const TensorView& latents, io::FrameWriter& writer, Dump& dump);

}  // namespace zoetrope::pipeline
