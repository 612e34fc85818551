// What a forward of a transformer takes, by its config: latents and text always, rows of an image and a control video
// where the model looks at them, random values; and attention over the whole sequence on one rank. For cases that time
// or check one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/tensor.h"

#include "models/wan/transformer/transformer.h"

namespace zoetrope::bench {

// What a run gives a transformer.
inline constexpr int64_t kRunTextRows = 512;   // to cross-attention, zero rows included
inline constexpr int64_t kRunImageRows = 257;  // what the published image encoder makes of one picture
inline constexpr float kRunTimestep = 500;     // some

struct ForwardSize {
  Shape latent;  // {F, H, W}
  int64_t text_rows = 0;
  int64_t image_rows = 0;      // where the model takes any and has no positions for a number of its own
  int64_t control_frames = 0;  // of the control video, in latents; 0: all
};

struct ForwardInputs {
  ForwardInputs(const wan::TransformerConfig& config, const ForwardSize& size, DType dtype);

  // Prompt and control video, after prepare(). They must outlive the transformer's use.
  void give(wan::Transformer& transformer, const Probe& probe = {}) const;

  Tensor latents;             // [1, C_in, F, H, W] F32
  Tensor text;                // [1, L, text_dim] of `dtype`
  Tensor image;               // [1, S, image_dim] of `dtype`, or empty
  Tensor control;             // [1, C_vace, Fc, H, W] F32, or empty
  std::vector<float> scales;  // of the control layers
};

// Rows of the image that such inputs have.
int64_t image_rows(const wan::TransformerConfig& config, const ForwardSize& size);

// body(attention) for a model of `config` in `dtype`, batch 1; what body throws comes out.
void with_whole_sequence(const wan::TransformerConfig& config, int64_t tokens, DType dtype, Stream& stream,
                         const std::function<void(attention::ContextAttention& attention)>& body);

}  // namespace zoetrope::bench
