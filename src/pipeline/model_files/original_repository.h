// The repository of a Wan model as its authors publish it: a transformer in the original names next to a config.json of
// its own (of two experts, in high_noise_model/ and low_noise_model/), the tokenizer in google/umt5-xxl/, and the text
// encoder and VAE as PyTorch pickles.
#pragma once

#include <filesystem>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

bool is_original_repository(const std::filesystem::path& folder);

// Whether its config.json is one of the authors', which has other keys than that of the hub. Converters of their files
// may leave its class out.
bool has_original_config(const std::filesystem::path& folder);

// `given`, whose model is such a repository, with its transformers and its tokenizer, and with the configs of the known
// model of these shapes as the model. Throws Error where the components that are pickles are not named as other files.
GenerateOptions with_original_files(const GenerateOptions& given);

}  // namespace zoetrope::pipeline
