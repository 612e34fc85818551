// What names of an expert's files in weight_cache begin with.
#pragma once

#include <string>

#include "pipeline/model_files/model_folder.h"

namespace zoetrope::pipeline {

// Of ranks that share the layers, each part has its own.
std::string weight_cache_name(const ModelFolder& model, int expert, int part = 0, int parts = 1);

}  // namespace zoetrope::pipeline
