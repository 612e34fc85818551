#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace zoetrope {

std::string host_name() {
  std::array<char, 256> text{};
  if (::gethostname(text.data(), text.size() - 1) != 0) return "an unnamed host";
  return text.data();
}

}  // namespace zoetrope
