// The files of the keys `lora`, `lora_high` and `lora_low`, merged into the weights of the experts they are meant for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Opens the files that the options name and merges them into the experts' weights: `lora` into all, `lora_high` into
// the high-noise expert (transformer) and `lora_low` into the low-noise one (transformer_2) of a model that has two.
void merge_loras(const GenerateOptions& options, ModelFolder& model);

// What was merged, a line a file and expert, and, as a warning, what was left out of it.
std::vector<std::string> lora_lines(const ModelFolder& model);
// Of the lines of a note those that are warnings, without the word.
std::vector<std::string> warnings_in(std::string_view note);

}  // namespace zoetrope::pipeline
