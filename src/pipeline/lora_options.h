// The keys `lora`, `lora_high` and `lora_low`: FILE:STRENGTH,FILE:STRENGTH, opened for the experts they are meant for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

// "a.safetensors:0.8,b.safetensors": entries between commas; what follows an entry's last colon is its strength, 1
// where there is no colon. So a path with a colon needs its strength, and one with a comma cannot be named. Throws
// Error that names the entry.
std::vector<LoraFile> parse_loras(std::string_view text);
std::string loras_text(const std::vector<LoraFile>& loras);
// Throws Error for a strength that is out of range.
void check_loras(const char* key, const std::vector<LoraFile>& loras);

// Opens the files that the options name and merges them into the experts' weights: `lora` into all, `lora_high` into
// the high-noise expert (transformer) and `lora_low` into the low-noise one (transformer_2) of a model that has two.
void merge_loras(const GenerateOptions& options, ModelFolder& model);

// What was merged, a line a file and expert, and, as a warning, what was left out of it.
std::vector<std::string> lora_lines(const ModelFolder& model);
// Of the lines of a note those that are warnings, without the word.
std::vector<std::string> warnings_in(std::string_view note);

}  // namespace zoetrope::pipeline
