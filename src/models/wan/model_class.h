// What kind of model a folder holds: which pictures and videos it takes besides a prompt, and how they reach the
// transformer.
#pragma once

#include <cstdint>
#include <string>

#include "models/wan/config.h"

namespace zoetrope::wan {

struct ModelInput {
  bool taken = false, needed = false;
  friend bool operator==(const ModelInput&, const ModelInput&) = default;
};

// How pictures and videos reach the transformer.
enum class Conditioning : uint8_t {
  kNone,
  kChannels,    // mask and pictures behind the latents' channels
  kFirstFrame,  // the picture is the first latent frame, whose tokens have timestep 0
  kControl,     // control layers
  kAnimate,     // like kChannels, segment by segment, with a pose video and a face video
};

struct ModelClass {
  const char* name = "text to video";
  Conditioning conditioning = Conditioning::kNone;
  ModelInput image, last_image;
  ModelInput control;    // control_video, mask, reference_images, conditioning_scale
  ModelInput animation;  // pose_video and face_video; mode, background_video, mask
};

// From what the transformer's layers take; the pipeline's class must agree. Throws Error for combinations that no
// published model has; `where` opens the sentence.
ModelClass model_class(const PipelineConfig& pipeline, const TransformerConfig& transformer, const VaeConfig& vae,
                       const std::string& where);

}  // namespace zoetrope::wan
