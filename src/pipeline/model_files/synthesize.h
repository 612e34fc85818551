// A checkpoint folder in the published layout, filled with the random weights that weights=random computes with: for
// comparing with programs that read files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/options.h"

namespace zoetrope::pipeline {

struct SynthesizeOptions {
  std::string model;  // a folder with configs, or a name of configs/
  std::string out;    // that must not be there yet
  std::optional<int64_t> layers;
  std::optional<int64_t> text_layers;
  int64_t seed = 0;
  std::string dtype = "float32";
  std::string text_dtype = "bf16";
  std::string components = "transformer,text_encoder,vae,tokenizer,image_encoder";
  std::optional<int64_t> threads;
};

OptionSet describe_options(SynthesizeOptions& options);

struct SynthesizeCallbacks {
  // `done` of `total` bytes of a component are written; 0 when it begins.
  std::function<void(const std::string& component, int64_t done, int64_t total)> progress;
  std::function<bool()> cancelled;
};

// Writes config, index and weight files (shards of at most 5 GB) tensor by tensor; the folder appears when it is whole.
// bf16 values are those of f32, rounded to nearest even; what the transformer computes in float32 always stays so.
// Returns the bytes of all weights. Throws Error where the folder is there, the disk has too little space, or a layer
// count is more than the model has.
int64_t synthesize(const SynthesizeOptions& options, const SynthesizeCallbacks& callbacks = {});

}  // namespace zoetrope::pipeline
