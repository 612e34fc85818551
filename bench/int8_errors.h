// What int8 costs each block of a transformer: the measurement of `zoetrope int8`.
#pragma once

#include <cstdint>
#include <functional>

#include "pipeline/model_files/int8_calibration.h"
#include "pipeline/model_files/model_folder.h"

namespace zoetrope::bench {

struct Int8ErrorSettings {
  // The model is opened with; `prompt` is the text, and `text_encoder_dtype`, `max_sequence_length`, `boundary_ratio`,
  // `weight_memory` and `threads` hold as for a run.
  pipeline::GenerateOptions run;
  int64_t timesteps = 3;       // of each expert, at the ends of equal parts of what it denoises
  std::function<void()> poll;  // may throw to give up
  // Forwards that are done, of all.
  std::function<void(int64_t done, int64_t total)> progress;
  std::function<void(const pipeline::Int8Errors& errors)> found;  // when an expert is measured
};

// Expert by expert, both branches of guidance at once, 64 tokens each. Latents are those of a run in bf16 from noise,
// by Euler steps with the guidance of `run`; the conditions of a model that takes any are random. The texts are those
// of the prompt and the negative one; with random weights they are random too, because their text encoder says nothing.
// A forward for each limit has attention in int8. A forward in bf16 leaves the residual stream behind each block, a
// forward in int8 what each block makes of the stream before it. Then every block has a forward in bf16 in which the
// difference of the two is added behind it, several times over, so that it stands out from what rounding changes; what
// the velocity is off is divided by that factor. Throws Error where the weights in bf16 do not fit into memory, where a
// velocity is not finite, and what loading throws.
void measure_int8_errors(const pipeline::ModelFolder& model, const Int8ErrorSettings& settings);

}  // namespace zoetrope::bench
