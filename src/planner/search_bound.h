// Seconds that a denoising step takes at least, without simulating it: what search() leaves things out by. A bound
// holds for every direction and every number of head chunks of a split with one kernel. Only search.cpp looks here.
#pragma once

#include "planner/search.h"

namespace zoetrope::planner {

// Of a split that nothing is known of: products, tiles and tokens of the rank with the most, and the ring's K/V through
// all links that a device has, or its hops' latencies where these are more.
StepPrediction least_of_split(const Work& work, const HardwareProfile& hardware, const Configuration& configuration);

enum class Change : uint8_t { kDirection, kHeadChunks };

// Of a configuration that differs in one of these from `plain`, which was simulated with the same kernel. Neither
// changes products, tiles or tokens. Of the exchange the first chunk's way there and the last one's way back stand in
// the open. Of the ring's waiting a direction saves three quarters at most, for both ways at once halve the transfers,
// and where no wrap link is crossed half of the rest may have waited for it; and what is left hides under the tiles.
// Head chunks are taken to save a quarter at most: they move the same blocks in more pieces.
double least_of_change(const StepPrediction& plain, Change change, int chunks_before, int chunks);

}  // namespace zoetrope::planner
