// What a Wan run computes, from its configs and a size alone: the operations that the planner's simulator prices.
// workload.h is the memory of the same run.
#pragma once

#include "models/wan/workload.h"
#include "planner/work.h"

namespace zoetrope::wan {

// Operations as this engine executes them: the prompts' keys and values are computed before denoising and not counted
// (8.6 TFLOP for both 14 B experts and two prompts, on every device alike), and of the decoder's convolutions no tap
// that falls on the zeros around a frame (vae_decode_flops: 599 TFLOP for 720 × 1280 × 81, where the dense count that
// others quote is 639). `name` is left to people, `steps` to the options: the result has 1.
planner::Work work(const ModelConfigs& configs, const RunSize& size);

}  // namespace zoetrope::wan
