// The inputs of a transformer's forward, by its config, with random values: latents and text always, rows of an image,
// a control video, a pose and a face where the model takes them; and attention over the whole sequence on one rank. For
// cases that time or check a forward.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/tensor.h"

#include "models/wan/transformer/transformer.h"

namespace zoetrope::bench {

// As in a run.
inline constexpr int64_t kRunTextRows = 512;   // of cross-attention, zero rows included
inline constexpr int64_t kRunImageRows = 257;  // the published image encoder's rows for one picture
inline constexpr float kRunTimestep = 500;     // any

struct ForwardSize {
  Shape latent;  // {F, H, W}
  int64_t text_rows = 0;
  int64_t image_rows = 0;      // where the model takes any, and its config does not fix their number
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
  Tensor pose, face;          // [1, C, F − 1, H, W] F32 and [1, F − 1, face tokens, d] of `dtype`, or empty
  std::vector<float> scales;  // of the control layers
};

// Rows of the image that such inputs have.
int64_t image_rows(const wan::TransformerConfig& config, const ForwardSize& size);

// body(attention) for a model of `config` in `dtype`. Throws what body throws.
void with_whole_sequence(const wan::TransformerConfig& config, int64_t batch, int64_t tokens, DType dtype,
                         const attention::Strategy& strategy, Stream& stream,
                         const std::function<void(attention::ContextAttention& attention)>& body);

// body(forward, velocity): forward() computes velocity [1, tokens, C_out] for inputs of `size`, batch 1.
void with_forward(const std::shared_ptr<const wan::TransformerWeights>& weights, const ForwardSize& size,
                  const attention::Strategy& strategy, Stream& stream,
                  const std::function<void(const std::function<void()>& forward, const TensorView& velocity)>& body);

}  // namespace zoetrope::bench
