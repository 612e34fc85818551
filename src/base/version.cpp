#include "zoetrope/version.h"

namespace zoetrope {

const char* version() { return ZOETROPE_VERSION; }

}  // namespace zoetrope
