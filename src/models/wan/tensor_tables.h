// The tensors of every component, from its config alone (wan.md sections 2–5); see io/tensor_table.h.
#pragma once

#include <string>

#include "io/tensor_table.h"
#include "models/wan/config.h"

namespace zoetrope::wan {

io::TensorTable transformer_tensors(const TransformerConfig& config);   // T2V, I2V, FLF2V, TI2V, VACE
io::TensorTable text_encoder_tensors(const TextEncoderConfig& config);  // the embedding is the first

// Both generations: vae_layout.h. Throw Error for a VAE that cannot be laid out.
io::TensorTable vae_tensors(const VaeConfig& config);
io::TensorTable vae_encoder_tensors(const VaeConfig& config);
io::TensorTable vae_decoder_tensors(const VaeConfig& config);

enum class ClipTensors {
  kUsed,   // what the transformer's rows come from: must be there
  kTower,  // with the last layer and the norm behind it: what a CLIPVisionModel holds
  kAll,    // with the projection: a CLIPVisionModelWithProjection
};
io::TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which = ClipTensors::kAll);

// A name that a checkpoint may hold although the table does not: normalisations that old conversions left behind, what
// a file of a whole CLIP model has beside the vision tower. Such tensors are ignored.
bool is_ignored_tensor(const std::string& name);

}  // namespace zoetrope::wan
