// What a step waits for weights that are not in memory when a layer needs them: read from the disk, packed again, or
// gathered among ranks, each while the layers before are computed.
#pragma once

#include <string>
#include <vector>

#include "planner/layer_walk.h"
#include "planner/routes.h"

namespace zoetrope::planner {

// Bytes of each rank's weights that are on their way at once: less leaves a link without work while a busy core comes
// to post more, and what attention sends waits until all have passed.
inline constexpr int64_t kWeightsUnderWay = int64_t{4} << 20;

struct WeightWait {
  std::vector<double> seconds;  // of a step, by rank
  std::string level;            // of the links, or "disk"; empty where packing takes longest
};

// `walk` has walked one layer. Layers arrive while others are computed, so that of a forward over n layers, of which k
// arrive, the longest counts of
//
//   computing n layers, and what the arrival of k costs the compute: packing, on the same cores; copies (link overlap)
//   reading k layers from the disk, once for a host: what one process read, others have from its page cache
//   gathering n layers over links that also carry attention's transfers
//   computing n layers, plus what attention's transfers wait for weights that are already on the links
//
// Where processes have different parts of every layer (tensor ranks), each of its own.
WeightWait wait_for_weights(const Work& work, const HardwareProfile& hardware, const parallel::ParallelLayout& layout,
                            const Routes& routes, const LayerWalk& walk);

}  // namespace zoetrope::planner
