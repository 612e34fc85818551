#include "pipeline/recipes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace zoetrope::pipeline {

std::vector<std::string> recipe_names() { return {"lightning_4"}; }

void apply_recipe(const std::string& name, GenerateOptions& options) {
  const std::vector<std::string> names = recipe_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    fail("'{}' is unknown; there is: {}", name, fmt::join(names, ", "));
  options.sigmas = {1, 0.75, 0.5, 0.25};
  options.timesteps.clear();
  options.flow_shift = 5;
  options.scheduler = sampling::SolverKind::kFlowMatchEuler;
  options.guidance_scale = 1;
  options.guidance_scale_2.reset();
}

}  // namespace zoetrope::pipeline
