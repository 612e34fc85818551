#include "base/cache_folder.h"

#include <cstdlib>

namespace zoetrope {

std::filesystem::path in_user_cache(const std::string& file) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  // A relative $XDG_CACHE_HOME is to be ignored, says the base directory specification.
  std::filesystem::path folder = variable("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {
    folder = variable("HOME");
    if (!folder.is_absolute()) return {};
    folder /= ".cache";
  }
  return folder / "zoetrope" / file;
}

}  // namespace zoetrope
