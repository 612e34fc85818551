// The version of the library, as `zoetrope --version` prints it.
#pragma once

namespace zoetrope {

const char* version();  // "0.1.0"

}  // namespace zoetrope
