// Seconds that a denoising step takes at least, without simulating it: what search() leaves things out by. A bound
// holds for every direction and every number of head chunks of a split with one kernel. Only search.cpp looks here.
#pragma once

#include "planner/search.h"

namespace zoetrope::planner {

// Of a split that nothing is known of: products, tiles and tokens of the rank with the most, and the ring's K/V through
// all links that a device has, or its hops' latencies where these are more.
StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration);

// Of another direction or number of head chunks, where `plain` was simulated with the same kernel, forward and with
// `chunks_before`. They change neither products, tiles nor tokens. Of the exchange the first chunk's way there and the
// last one's way back stand in the open. Of the ring's transfers at most three quarters go: both ways at once halve
// them, and where no wrap link is crossed half of the rest may have waited for it.
double least_of_variant(const StepPrediction& plain, int chunks_before, int chunks);

}  // namespace zoetrope::planner
