#include "base/error.h"

#include <cstdlib>
#include <system_error>

#include "base/print.h"
#include "base/unfinished_files.h"

namespace zoetrope {

std::string system_message(int code) { return std::generic_category().message(code); }

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  print_error("{}:{}: this must hold and does not: {}{}{}\n", file, line, condition, detail.empty() ? "" : ": ",
              detail);
  remove_unfinished_files();
  std::abort();
}

}  // namespace zoetrope
