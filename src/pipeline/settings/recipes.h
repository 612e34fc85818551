// Settings that published distilled models and LoRA files were made for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace zoetrope::pipeline {

std::vector<std::string> recipe_names();

// A recipe is like a file of settings: keys that follow it change it, and it changes those before it. Throws Error for
// an unknown name, with those there are.
//
//   lightning_4  Wan2.2-Lightning and the step-distilled Wan 2.1 of lightx2v, as checkpoints or as LoRA files: four
//   steps
//                of Euler at the timesteps 1000, 750, 500, 250, shifted by 5, without guidance. Of two experts the
//                first takes two steps, by the boundary of the checkpoint (its 4-step configurations, and
//                denoising_step_list of https://github.com/ModelTC/LightX2V).
OptionSet::Settings recipe_settings(std::string_view name);

}  // namespace zoetrope::pipeline
