// Shares of the work for the ranks of a context that are not equally fast: which shard weights make a step shortest on
// a machine whose profile says its devices' speeds. What they were measured from is pipeline/ranks/shard_balance.h.
#pragma once

#include <vector>

#include "planner/simulator.h"

namespace zoetrope::planner {

// What a rank computes, without waiting and without what hides behind it.
double compute_seconds(const Breakdown& rank);

// A step with these weights; empty: even shards.
StepPrediction simulate_shards(const Work& work, const HardwareProfile& hardware, Configuration configuration,
                               const std::vector<int>& shard_weights);

// The weights with the shortest step of those that were tried: even ones, ones in proportion to the speeds, and what
// these become where a rank has more to do than others in the end, as in a context of two dimensions. Small numbers,
// which are off the speeds by less than these can be measured. Empty: even.
std::vector<int> fastest_shard_weights(const Work& work, const HardwareProfile& hardware,
                                       const Configuration& configuration);

}  // namespace zoetrope::planner
