// What one attention plan books on a rank, summed over the program that it makes.
#pragma once

#include "planner/bytes.h"
#include "planner/workload.h"

namespace zoetrope::planner {

// Exchange buffers, ring blocks on their way, statistics, running states of a context rank. `sizes` has the tokens of
// all context ranks.
Bytes attention_workspace(const parallel::Sizes& sizes, const parallel::ContextLayout& layout,
                          parallel::Softmax softmax, int rank);

}  // namespace zoetrope::planner
