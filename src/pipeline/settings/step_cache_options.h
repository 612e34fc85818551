// The keys of step caches. What they mean for a model and its steps: step_cache_settings.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "models/sampling/step_cache.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// As the key `cache` spells it.
const char* step_cache_name(const GenerateOptions& options);

void describe_step_cache_options(OptionSet& set, GenerateOptions& options);

// The numbers that cache_ratios gives, as a list or as a file of one: conditional and unconditional in turn, above 0.
// Throws Error where it gives something else.
std::vector<double> mag_ratios(const std::string& value);
// The same of cache_coefficients: of a polynomial, highest power first.
std::vector<double> tea_coefficients(const std::string& value);

// Puts the numbers of the files that cache_ratios and cache_coefficients name in their place, so that the keys mean the
// same elsewhere and later. Throws Error where one is neither a published model nor a file or list of numbers.
void replace_cache_files(GenerateOptions& options);

// What the incomplete steps of the chosen cache reuse, which a run has to keep for them. None without a cache.
std::optional<sampling::StepWork> step_cache_reuse(const GenerateOptions& options);

// The guidance branches are not dealt out to ranks: the cache leaves one of them out.
bool computes_branches_in_turn(const GenerateOptions& options);

}  // namespace zoetrope::pipeline
