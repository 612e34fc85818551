// The refusal of pictures and videos that a model does not take, and lists that are given as text. Reads no file. How
// inputs become conditions is conditions.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Throws Error for an input that this class of models does not take, with those it takes, and for inputs that
// contradict each other.
void check_given_inputs(const GenerateOptions& options, const ModelFolder& model);
// The same, and for an input that this class needs and lacks: nothing runs without it.
void check_inputs(const GenerateOptions& options, const ModelFolder& model);

// reference_images as paths. Throws Error for an empty one.
std::vector<std::filesystem::path> reference_paths(const GenerateOptions& options);
// conditioning_scale, one for each of `layers` control layers. Throws Error for another count than one or all.
std::vector<float> conditioning_scales(const GenerateOptions& options, size_t layers);

}  // namespace zoetrope::pipeline
