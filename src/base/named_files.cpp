#include "base/named_files.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  return fs::weakly_canonical(fs::absolute(a), ignored) == fs::weakly_canonical(fs::absolute(b), ignored);
}

}  // namespace

std::string if_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? path : "";
}

void check_files_differ(std::initializer_list<NamedFile> files) {
  for (const NamedFile* file = files.begin(); file != files.end(); ++file) {
    for (const NamedFile* other = files.begin(); other != file; ++other) {
      if (file->path.empty() || other->path.empty() || !same_file(file->path, other->path)) continue;
      fail("{}={} is the same file as {}={}; each needs a file of its own", file->key, file->path, other->key,
           other->path);
    }
  }
}

}  // namespace zoetrope
