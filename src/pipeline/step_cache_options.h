// The keys of step caches, and what they mean for a model and its steps: which of its steps need not run the whole
// model is decided by models/sampling, from the settings that are made here. Refuses what does not go together.
#pragma once

#include <optional>

#include "base/options.h"
#include "models/sampling/step_cache.h"
#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

struct RunPlan;

// As the key `cache` spells it.
const char* step_cache_name(const GenerateOptions& options);

void describe_step_cache_options(OptionSet& set, GenerateOptions& options);

// Puts the numbers of the files that cache_ratios and cache_coefficients name in their place, so that the keys mean the
// same elsewhere and later. Throws Error where one is neither a published model nor a file or list of numbers.
void replace_cache_files(GenerateOptions& options);

// What the incomplete steps of the chosen cache reuse, which a run has to keep for them. None without a cache.
std::optional<sampling::StepWork> step_cache_reuse(const GenerateOptions& options);

// The guidance branches are not dealt out to ranks: the cache leaves one of them out.
bool computes_branches_in_turn(const GenerateOptions& options);

// From guidance, solver and boundary of `plan`. Throws Error where guidance is off, where nothing was published for the
// model and nothing is given instead, and for keys of another cache.
sampling::StepCount step_count(const RunPlan& plan);
// With what a budget chose in its place: the blocks of int8_layers=auto, the limit of attention in int8, and the
// threshold of a cache. So these are what journals, certificates and videos say, and nothing there depends on what was
// measured.
GenerateOptions with_choices(GenerateOptions options, const ModelFolder& model);
// Whole steps that denoising amounts to, for predictions: less than the steps where the cache decides by their number
// alone, all of them where it depends on data.
int64_t priced_steps(const RunPlan& plan);
sampling::StepCacheSettings step_cache_settings(const GenerateOptions& options, const ModelFolder& model,
                                                const RunPlan& plan);

}  // namespace zoetrope::pipeline
