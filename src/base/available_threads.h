// How many threads this process may run at once: the cores of its affinity.
#pragma once

namespace zoetrope {

int available_threads();  // >= 1

}  // namespace zoetrope
