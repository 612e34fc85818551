// A folder that keys name for files to come. Its parent must exist: a name that is mistyped makes no tree of folders.
#pragma once

#include <filesystem>

#include "base/unfinished_files.h"

namespace zoetrope {

class MadeFolder {
 public:
  // Makes the folder where there is none. Throws Error where that cannot be done.
  explicit MadeFolder(std::filesystem::path path);
  MadeFolder(MadeFolder&&) = delete;
  ~MadeFolder();  // one that it made and that is empty goes again

 private:
  std::filesystem::path made_;  // empty: it was there
  UnfinishedPath unfinished_;
};

}  // namespace zoetrope
