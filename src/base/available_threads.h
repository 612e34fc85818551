// How many threads this process may run at once: available_cores().threads().
#pragma once

namespace zoetrope {

int available_threads();  // >= 1

}  // namespace zoetrope
