// Where the program keeps what it has found out about a machine: the user's cache folder, as the base directory
// specification finds it. Makes no folder and reads no file.
#pragma once

#include <filesystem>
#include <string>

namespace zoetrope {

// $XDG_CACHE_HOME/zoetrope/file, else $HOME/.cache/zoetrope/file; empty where neither variable names a folder.
std::filesystem::path in_user_cache(const std::string& file);

}  // namespace zoetrope
