// The tensors of the encoders, from their configs alone (wan.md sections 1.6 and 5); see io/tensor_table.h.
#pragma once

#include <string>

#include "io/tensor_table.h"
#include "models/encoders/config.h"

namespace zoetrope::encoders {

io::TensorTable text_encoder_tensors(const TextEncoderConfig& config);  // the embedding is the first

enum class ClipTensors {
  kUsed,   // what the transformer's rows come from: must be there
  kTower,  // with the last layer and the norm behind it: what a CLIPVisionModel holds
  kAll,    // with the projection: a CLIPVisionModelWithProjection
};
io::TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which = ClipTensors::kAll);

// A name that a checkpoint may hold although the table does not: what a file of a whole CLIP model has besides the
// vision tower. Such tensors are ignored.
bool is_ignored_tensor(const std::string& name);

}  // namespace zoetrope::encoders
