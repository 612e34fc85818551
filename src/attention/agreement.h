// What the ranks of a context must have planned alike.
#pragma once

#include "zoetrope/attention.h"

namespace zoetrope::attention {

// Collective. Throws Error on every rank where they bring different problems, strategies (checked) or layouts, with
// the first difference as a user would write it. Ranks that disagree would wait for messages that never come, or fold
// rows that belong to others.
void check_agreement(comm::Communicator& context, const Problem& problem, const Strategy& strategy,
                     const parallel::ContextLayout& layout);

}  // namespace zoetrope::attention
