// Ranks that were started with different settings would compute nonsense or hang: they are refused at the start.
#pragma once

#include <string>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

// `values` is one "key=value" a line. Collective. Throws the same Error on every rank where a rank's values differ from
// rank 0's, naming the rank, the key and both values.
void require_agreement(comm::Communicator& world, const std::string& values);

}  // namespace zoetrope::pipeline
