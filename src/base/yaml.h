// YAML files as they are read here: one document, and each key of a mapping once. The rest of the format is yaml-cpp's.
#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace zoetrope {

// The file's only document. Error, with the file and the line, where it is no regular file, not YAML, holds another
// document or a key twice, or is nested too deeply.
YAML::Node read_yaml(const std::filesystem::path& path);

}  // namespace zoetrope
