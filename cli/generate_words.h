// What stands behind `zoetrope generate`, for the commands that take it too.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::cli {

// YAML files, a checkpoint folder and key=value, later ones above earlier ones; with resume= what its run was started
// with below all of them. `set` describes `options`. Throws Error.
void parse_generate_words(const std::vector<std::string>& words, pipeline::GenerateOptions& options, OptionSet& set);

// Sets the key=value of a command that takes the keys of `generate` besides `own`, and returns the other words.
std::vector<std::string> take_own_words(const std::vector<std::string>& arguments, OptionSet& own);

}  // namespace zoetrope::cli
