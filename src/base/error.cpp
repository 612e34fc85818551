#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace zoetrope {

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  fmt::print(stderr, "{}:{}: this must hold and does not: {}{}{}\n", file, line, condition, detail.empty() ? "" : ": ",
             detail);
  std::abort();
}

}  // namespace zoetrope
