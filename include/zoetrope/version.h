// The version of the library, as `zoetrope --version` prints it.
#pragma once

#include "zoetrope/api.h"

namespace zoetrope {

ZOETROPE_API const char* version();  // "0.1.0"

}  // namespace zoetrope
