#pragma once

#include <string>

namespace zoetrope {

// The name of this machine; "an unnamed host" where the system does not say.
std::string host_name();

}  // namespace zoetrope
