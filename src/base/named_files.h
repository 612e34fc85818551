// Files that keys name, looked at before anything is computed for them. Writing them is atomic_file.h.
#pragma once

#include <initializer_list>
#include <string>

namespace zoetrope {

struct NamedFile {
  const char* key;
  const std::string& path;  // empty: none
};

// `path`, where something lies there; else empty: what may be a file or a name.
std::string if_exists(const std::string& path);

// Throws Error where two keys name one file, however each is spelt.
void check_files_differ(std::initializer_list<NamedFile> files);

}  // namespace zoetrope
