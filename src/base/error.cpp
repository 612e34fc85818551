#include "base/error.h"

#include <cstdlib>

#include "base/print.h"
#include "base/unfinished_files.h"

namespace zoetrope {

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  print_error("{}:{}: this must hold and does not: {}{}{}\n", file, line, condition, detail.empty() ? "" : ": ",
              detail);
  remove_unfinished_files();
  std::abort();
}

}  // namespace zoetrope
