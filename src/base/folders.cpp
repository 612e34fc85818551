#include "base/folders.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"

namespace zoetrope {

namespace fs = std::filesystem;

MadeFolder::MadeFolder(fs::path path) {
  std::error_code error;
  // On the list before it is there, so that no signal comes between.
  if (!fs::exists(path, error)) unfinished_ = UnfinishedPath(path.string(), UnfinishedPath::Kind::kFolder);
  const bool made = fs::create_directory(path, error);
  if (error || !is_folder(path)) {
    fail("{}: this folder cannot be made: {}", path.string(), error ? error.message() : "a file has its name");
  }
  if (!made) {
    unfinished_.forget();
    return;
  }
  if (unfinished_files_removed()) {
    fs::remove(path, error);
    fail("{}: interrupted before this folder was made", path.string());
  }
  made_ = std::move(path);
}

// A folder that is not empty stays, also when a signal ends the program.
MadeFolder::~MadeFolder() {
  std::error_code ignored;
  if (!made_.empty()) fs::remove(made_, ignored);
}

std::filesystem::path without_last_slash(std::filesystem::path path) {
  return path.has_filename() ? path : path.parent_path();
}

fs::path in_user_cache(const std::string& file) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  // A relative $XDG_CACHE_HOME is to be ignored, says the base directory specification.
  fs::path folder = variable("XDG_CACHE_HOME");
  if (!folder.is_absolute()) {
    folder = variable("HOME");
    if (!folder.is_absolute()) return {};
    folder /= ".cache";
  }
  return folder / "zoetrope" / file;
}

void make_parent_folders(const fs::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) fail("{}: cannot make this folder: {}", file.parent_path().string(), error.message());
}

fs::path own_library() {
  Dl_info info{};
  link_map* map = nullptr;
  static const int here = 0;
  if (dladdr1(&here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 || map == nullptr) return {};
  const std::string name = map->l_name;  // empty for the program
  std::error_code ignored;
  return name.empty() ? fs::path() : fs::absolute(name, ignored);
}

fs::path own_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored);
}

}  // namespace zoetrope
