// The one description of every key of a generation run.
#pragma once

#include <map>
#include <string>

#include "zoetrope/generate.h"

#include "base/options.h"

namespace zoetrope::pipeline {

// Of the key `hardware`, wherever something is planned.
inline constexpr const char* kHardwareHelp =
    "profile that the planner chooses with: a name of configs/hardware/ or a file; unset: what `zoetrope calibrate` or "
    "a "
    "first use measured here";

// Binds the keys to the fields; `options` must outlive the set.
OptionSet describe_options(GenerateOptions& options);

// The keys whose values are not the defaults, with their values.
std::map<std::string, std::string> changed_settings(const GenerateOptions& options);

// Throws Error for what is wrong whatever the model is: an empty prompt or model, sizes no Wan model can make (naming
// the nearest that it can), an empty output.
void check_options(const GenerateOptions& options);

}  // namespace zoetrope::pipeline
