// A folder of files that appears under its final name complete or not at all, as AtomicFile does for one file. Until
// then the files are in a hidden folder next to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/unfinished_files.h"

namespace zoetrope {

class AtomicFolder {
 public:
  // An Error if the name is taken, or no folder can be created next to it.
  explicit AtomicFolder(const std::filesystem::path& final_path);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();  // removes everything unless committed

  // Where to write the file of this name; its folder exists.
  std::filesystem::path file(const std::filesystem::path& name);
  void write(const std::filesystem::path& name, const std::string& text);
  uint64_t free_bytes() const;  // of the file system, for this user
  void commit();

 private:
  void make_folder(const std::filesystem::path& path);

  std::filesystem::path final_;
  std::filesystem::path temporary_;  // empty once committed
  std::vector<UnfinishedPath> unfinished_;
};

}  // namespace zoetrope
