// What kind of model a folder holds, as far as it decides what the model is given beside a prompt, and the refusal of
// inputs that it does not take. How inputs become conditions is conditions.h.
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/wan/config.h"
#include "pipeline/generate_options.h"

namespace zoetrope::pipeline {

enum class Need : uint8_t { kRefused, kOptional, kRequired };

// How pictures and videos reach the transformer.
enum class Conditioning : uint8_t {
  kNone,
  kChannels,    // mask and pictures behind the latents' channels
  kFirstFrame,  // the picture is the first latent frame, whose tokens have timestep 0
  kControl,     // control layers
};

struct ModelClass {
  const char* name = "text to video";
  Conditioning conditioning = Conditioning::kNone;
  Need image = Need::kRefused;
  Need last_image = Need::kRefused;
  Need control = Need::kRefused;  // control_video, mask, reference_images, conditioning_scale
};

// From what the transformer's layers take; the pipeline's class must agree. Throws Error for combinations that no
// published model has; `where` opens the sentence.
ModelClass model_class(const wan::PipelineConfig& pipeline, const wan::TransformerConfig& transformer,
                       const wan::VaeConfig& vae, const std::string& where);

// Throws Error for an input that this class does not take, with those it takes, and for inputs that contradict each
// other. Reads no file.
void check_given_inputs(const GenerateOptions& options, const ModelClass& model,
                        const wan::TransformerConfig& transformer);
// The same, and for an input that this class needs and lacks: nothing runs without it.
void check_inputs(const GenerateOptions& options, const ModelClass& model, const wan::TransformerConfig& transformer);

// reference_images as paths. Throws Error for an empty one.
std::vector<std::filesystem::path> reference_paths(const GenerateOptions& options);
// conditioning_scale, one for each of `layers` control layers. Throws Error for another count than one or all.
std::vector<float> conditioning_scales(const GenerateOptions& options, size_t layers);

}  // namespace zoetrope::pipeline
