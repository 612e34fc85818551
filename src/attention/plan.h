// plan() for the rest of the library, where a rank has a stream already: its threads, scratch memory and trace lane;
// and the tile sizes of a planned attention, for a search.
#pragma once

#include "zoetrope/attention.h"

#include "device/stream.h"

namespace zoetrope::kernels {
struct FlashProblem;
struct TileSizes;
}  // namespace zoetrope::kernels

namespace zoetrope::attention {

// As the public plan(); `stream` must outlive the attention too.
ContextAttention plan(const Problem& problem, const Strategy& strategy, comm::Communicator& context, Stream& stream);

// What the kernel computes on this rank, of the first head chunk; null where the rank has nothing to compute.
const kernels::FlashProblem* kernel_problem(const ContextAttention& attention);
void set_tiles(ContextAttention& attention, const kernels::TileSizes& sizes);

}  // namespace zoetrope::attention
