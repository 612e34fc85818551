// Reads YAML files with one document and no duplicate keys, by yaml-cpp.
#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace zoetrope {

// The file's only document. Error, with file and line, if it is not a regular file, not UTF-8, not YAML, has another
// document or a duplicate key, or is nested too deeply.
YAML::Node read_yaml(const std::filesystem::path& path);

}  // namespace zoetrope
