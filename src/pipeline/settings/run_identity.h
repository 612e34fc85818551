// What makes a run the same run, as its journal compares it (RunIdentity).
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Those that decide the video, with their values. Files count by their names.
std::map<std::string, std::string> deciding_settings(GenerateOptions options);

// The members of an object that has nothing but texts. Throws Error where it has.
std::map<std::string, std::string> texts(const JsonObject& object);

// By name, of lines as fingerprint() gives them. Several files of one name, as reference images, share an entry.
std::map<std::string, std::string> hashes_by_file(const std::string& lines);

}  // namespace zoetrope::pipeline
