// The configurations that ship with the program: models in the published layout without their weights, and a small
// tokenizer for them. Finds the folder; does not read it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zoetrope::pipeline {

// configs/ beside the shared object of this code (in a Python package), ../share/zoetrope/configs next to it or to the
// program (as installed), where it was to be installed, or in the source tree; the first that is there. Throws Error
// where none is.
std::filesystem::path config_folder();
// The same, or nothing where none is.
std::optional<std::filesystem::path> find_config_folder();

// Names of the models in it, sorted.
std::vector<std::string> config_names();

// `model` where it is a folder, else the model of this name, or of this published repository, in config_folder().
// Throws Error with the names there are.
std::filesystem::path model_or_config(const std::string& model);

// What `generate` begins with for a model of config_folder(), the YAML file next to it; nothing for folders elsewhere.
std::optional<std::filesystem::path> yaml_of_config(const std::filesystem::path& model);

}  // namespace zoetrope::pipeline
