// Of a model what its workload follows from: its configs, and how its weights are stored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/weights/tensor_encoder.h"
#include "models/wan/workload.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

wan::ModelConfigs model_configs(const ModelFolder& model);
// How the model's weights are stored: in the files that keys name, in the weights of `folder`, or, where it has configs
// alone, as they are published. So count keys whose files are not here, and components of the folder that are not
// whole: these are returned, as key=FILE.
std::vector<std::string> use_stored_weights(const GenerateOptions& options, const std::filesystem::path& folder,
                                            wan::ModelConfigs& configs);

// Of the larger expert: as it is, and as `convert` would write it in this format.
int64_t transformer_file_bytes(const wan::ModelConfigs& configs);
int64_t converted_file_bytes(const wan::ModelConfigs& configs, const io::NumberFormatInfo& format);

}  // namespace zoetrope::pipeline
