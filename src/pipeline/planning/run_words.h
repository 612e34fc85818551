// What a run does, in words of the lines that it prints first.
#pragma once

#include <string>

#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// "28 of 30 blocks multiply in int8", of each expert where they differ; empty without.
std::string int8_words(const ModelFolder& model, const RunPlan& plan);
// " (26 with high noise)"; empty where one expert has all.
std::string expert_words(const RunPlan& plan);
// "4, of low noise 3"
std::string guidance_words(const GenerateOptions& options, const RunPlan& plan);
// "step cache tea, threshold 0.015"; empty without a cache.
std::string step_cache_words(const GenerateOptions& options);

}  // namespace zoetrope::pipeline
