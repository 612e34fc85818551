// What the keys of a step cache mean for a model and its steps: which of its steps need not run the whole model is
// decided by models/sampling, from the settings that are made here. Refuses what does not go together.
#pragma once

#include <cstdint>

#include "models/sampling/step_cache.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// From solver and boundary of `plan`.
sampling::StepCount step_count(const RunPlan& plan);
// Whole steps that denoising amounts to, for predictions: less than the steps where the cache decides by their number
// alone, all of them where it depends on data.
int64_t priced_steps(const RunPlan& plan);
// Throws Error where guidance is off, where nothing was published for the model and nothing is given instead, and for
// keys of another cache.
sampling::StepCacheSettings step_cache_settings(const GenerateOptions& options, const ModelFolder& model,
                                                const RunPlan& plan);

}  // namespace zoetrope::pipeline
