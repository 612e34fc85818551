// A text-to-video checkpoint folder, opened and checked: configs, tokenizer, names and shapes of every tensor. No
// weights are read yet, so whatever is wrong with a folder is said before anything long begins.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "io/checkpoint.h"
#include "models/wan/config.h"
#include "models/wan/text/tokenizer.h"

namespace zoetrope::pipeline {

// Published names of weight files, without their endings.
inline constexpr const char* kDiffusersStem = "diffusion_pytorch_model";  // transformer, VAE
inline constexpr const char* kTextEncoderStem = "model";

struct Expert {
  wan::TransformerConfig config;
  io::Checkpoint checkpoint;
};

struct ModelFolder {
  std::filesystem::path folder;
  wan::PipelineConfig pipeline;
  wan::SchedulerConfigFile scheduler;
  wan::Tokenizer tokenizer;
  wan::TextEncoderConfig text_encoder_config;
  io::Checkpoint text_encoder;
  std::vector<Expert> experts;  // transformer, and transformer_2 of two-expert models
  wan::VaeConfig vae_config;
  io::Checkpoint vae;

  // Throws Error for the first thing that is missing, broken or not supported.
  static ModelFolder open(const std::filesystem::path& folder);
};

}  // namespace zoetrope::pipeline
