// The one description of the strategy's configuration keys, for every command that takes them. What the keys mean
// together is parse_strategy()'s (zoetrope/attention.h).
#pragma once

#include "zoetrope/attention.h"

#include "base/options.h"

namespace zoetrope::attention {

// Binds the keys to the fields; `options` must outlive the set.
void describe_strategy_options(OptionSet& set, StrategyOptions& options);
// Of these, the ones that say how ranks share the work, and the softmax.
void describe_layout_options(OptionSet& set, StrategyOptions& options);

}  // namespace zoetrope::attention
