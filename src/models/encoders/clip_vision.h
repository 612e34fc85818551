// The CLIP vision tower: pixels in, one row per patch and one for the whole picture out (wan.md sections 1.6, 7.3).
// That is the hidden state before the last layer; the last layer, the norm behind it and the projection are in the
// files and never read.
//
// Weights are read from their source layer by layer and not kept, like the text encoder's (umt5.h): a run needs the
// tower once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "io/weights/weights.h"
#include "models/encoders/config.h"
#include "tensor/probe.h"

namespace zoetrope::encoders {

class ClipVision {
 public:
  // `source`: io::checkpoint_source(io::Checkpoint::open(folder / "image_encoder", "model")). `dtype` F32 or BF16: of
  // matrices and residual stream; softmax and norms are float32 inside. Throws Error where a tensor is missing or has
  // another shape than the config says.
  ClipVision(std::shared_ptr<const io::WeightSource> source, const ClipVisionConfig& config, DType dtype);
  ~ClipVision();
  ClipVision(ClipVision&&) noexcept;

  const ClipVisionConfig& config() const;

  // pixels [n, 3, S, S] F32 contiguous, from clip_pixels() → out [n, tokens, hidden_size] F32 or BF16, contiguous. All
  // pictures in one pass over the weights. `tick` is called after every layer and may throw to stop. The probe sees
  // "embeddings", "layer.0", ….
  void encode(Stream& stream, const TensorView& pixels, const TensorView& out, const Probe& probe = {},
              const std::function<void()>& tick = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zoetrope::encoders
