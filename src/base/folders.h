// Folders that the program creates: those that keys name for output files, and its part of the user's cache folder. And
// where the program itself is.
#pragma once

#include <filesystem>
#include <string>

#include "base/unfinished_files.h"

namespace zoetrope {

// A folder that a key names for output files. Its parent must exist, so that a mistyped path creates no tree of
// folders.
class MadeFolder {
 public:
  // Creates the folder if it does not exist. Throws Error if that is not possible.
  explicit MadeFolder(std::filesystem::path path);
  MadeFolder(MadeFolder&&) = delete;
  ~MadeFolder();  // removes the folder if it created it and it is empty

 private:
  std::filesystem::path made_;  // empty: it existed
  UnfinishedPath unfinished_;
};

// "frames/" as "frames", so that its last part has the name.
std::filesystem::path without_last_slash(std::filesystem::path path);

// $XDG_CACHE_HOME/zoetrope/file, else $HOME/.cache/zoetrope/file, as the base directory specification has it; empty
// where neither variable names a folder. Creates nothing.
std::filesystem::path in_user_cache(const std::string& file);

// Creates all folders of the path of `file`. Throws Error if one cannot be created.
void make_parent_folders(const std::filesystem::path& file);

// The shared object that this code is in; empty where it is in the program.
std::filesystem::path own_library();
// The file of the running program; empty where the system does not say.
std::filesystem::path own_program();

}  // namespace zoetrope
