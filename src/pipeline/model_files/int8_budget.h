// What of a model is multiplied in int8 where a budget for its error says so, by the errors that `zoetrope int8`
// measured, and the settings of a run with what a budget chose.
#pragma once

#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Chooses the loosest limit for attention with which it fits, and with it as many blocks as fit. Throws Error where
// errors are missing, and where nothing fits, with the least budget.
void spend_budget(const GenerateOptions& options, ModelFolder& model);

// With what a budget chose in its place: the blocks of int8_layers=auto, the limit of attention in int8, and the
// threshold of a cache. So these are what journals, certificates and videos say, and nothing there depends on what was
// measured.
GenerateOptions with_choices(GenerateOptions options, const ModelFolder& model);

}  // namespace zoetrope::pipeline
