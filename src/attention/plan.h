// plan() for the rest of the library, where a rank has a stream already: its threads, scratch memory and trace lane.
#pragma once

#include "zoetrope/attention.h"

#include "device/stream.h"

namespace zoetrope::attention {

// As the public plan(); `stream` must outlive the attention too.
ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream);

}  // namespace zoetrope::attention
