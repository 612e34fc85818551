// What of a model is multiplied in int8 where a budget for its error says so, by the errors that `zoetrope int8`
// measured.
#pragma once

#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

// Chooses the loosest limit for attention with which it fits, and with it as many blocks as fit. Throws Error where
// errors are missing, and where nothing fits, with the least budget.
void spend_budget(const GenerateOptions& options, ModelFolder& model);

}  // namespace zoetrope::pipeline
