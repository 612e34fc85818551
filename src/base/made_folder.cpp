#include "base/made_folder.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace zoetrope {

namespace fs = std::filesystem;

MadeFolder::MadeFolder(fs::path path) {
  std::error_code error;
  const bool made = fs::create_directory(path, error);
  if (error || !fs::is_directory(path)) {
    fail("{}: this folder cannot be made: {}", path.string(), error ? error.message() : "a file has its name");
  }
  if (!made) return;
  unfinished_ = UnfinishedPath(path.string(), UnfinishedPath::Kind::kFolder);
  made_ = std::move(path);
}

// What is not empty stays, here and where a signal ends the program.
MadeFolder::~MadeFolder() {
  std::error_code ignored;
  if (!made_.empty()) fs::remove(made_, ignored);
}

}  // namespace zoetrope
