#include "base/error.h"

#include <cstdio>
#include <cstdlib>

#include "base/unfinished_files.h"

namespace zoetrope {

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  fmt::print(stderr, "{}:{}: this must hold and does not: {}{}{}\n", file, line, condition, detail.empty() ? "" : ": ",
             detail);
  remove_unfinished_files();
  std::abort();
}

}  // namespace zoetrope
