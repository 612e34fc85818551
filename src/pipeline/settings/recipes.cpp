#include "pipeline/settings/recipes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace zoetrope::pipeline {

std::vector<std::string> recipe_names() { return {"lightning_4"}; }

OptionSet::Settings recipe_settings(std::string_view name) {
  const std::vector<std::string> names = recipe_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    fail("'{}' is unknown; there is: {}", name, fmt::join(names, ", "));
  return {{"sigmas", "1,0.75,0.5,0.25"},     {"timesteps", kDefaultValue}, {"flow_shift", "5"},
          {"scheduler", "flow_match_euler"}, {"guidance_scale", "1"},      {"guidance_scale_2", kDefaultValue}};
}

}  // namespace zoetrope::pipeline
