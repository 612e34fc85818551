// The folder of models that ComfyUI keeps: one file per component, by kind in diffusion_models/ (or unet/),
// text_encoders/ (or clip/), vae/ and clip_vision/. Finds the files of a model in it; what they hold is opened and
// checked elsewhere.
#pragma once

#include <filesystem>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Whether it has a folder of transformers, diffusion_models/ or unet/.
bool is_comfy_folder(const std::filesystem::path& folder);

// `given` with the files of components that it leaves open. They are looked for in the folder `model`, or in the one
// that the file `transformer` lies in, where that is one of ComfyUI and the model's folder has none itself. A file that
// is named without its folder is looked for there too. `model` becomes the folder of configs: itself where it holds
// them, else that of the known model with the transformer's shapes. A repository of a model's authors is taken likewise
// (original_repository.h). Throws Error where no file or several files fit the
// model, with their names. Other options stay as they are; so do those of random weights.
GenerateOptions with_found_files(const GenerateOptions& given);

}  // namespace zoetrope::pipeline
