// The tensors of the encoders, from their configs alone (wan.md sections 1.6 and 5); see io/weights/tensor_table.h.
#pragma once

#include "io/weights/named_source.h"
#include "io/weights/tensor_table.h"
#include "models/encoders/config.h"

namespace zoetrope::encoders {

io::TensorTable text_encoder_tensors(const TextEncoderConfig& config);  // the embedding is the first

enum class ClipTensors {
  kUsed,   // what the transformer's rows come from: must be there
  kTower,  // with the last layer and the norm behind it: what a CLIPVisionModel holds
  kAll,    // with the projection: a CLIPVisionModelWithProjection
};
io::TensorTable clip_vision_tensors(const ClipVisionConfig& config, ClipTensors which = ClipTensors::kAll);

// What other files of them may hold besides.
io::FileRules text_encoder_files();
io::FileRules clip_vision_files();

// Of text encoders that ComfyUI saved: the bytes of SentencePiece's spiece.model.
inline constexpr const char* kTokenizerTensor = "spiece_model";

}  // namespace zoetrope::encoders
