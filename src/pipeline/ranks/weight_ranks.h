// Ranks that keep parts of packed weights for one another (io/weights/weight_shards.h), over a communicator.
#pragma once

#include <memory>

#include "zoetrope/communicator.h"

#include "io/weights/weight_shards.h"

namespace zoetrope::pipeline {

// `ranks`: processes, or threads that are to have weights of their own. Used by one thread at a time, which need not be
// the rank's.
std::unique_ptr<io::WeightShards> weight_shards(std::unique_ptr<comm::Communicator> ranks);

}  // namespace zoetrope::pipeline
