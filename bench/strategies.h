// Rows of `bench attention` and `bench pipeline`: a name of attention= and keys that refine it, as
// "ring+ring_direction=open".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/attention.h"

namespace zoetrope::bench {

struct NamedStrategy {
  // Throws Error for what `attention=` or its keys refuse, and for auto.
  explicit NamedStrategy(std::string row);

  std::string name;
  attention::StrategyOptions keys{};
};

// Comma-separated rows; "all" is `all`.
std::vector<NamedStrategy> parse_strategies(std::string_view words, const std::vector<std::string>& all);

}  // namespace zoetrope::bench
