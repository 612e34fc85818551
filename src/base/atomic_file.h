// A file that appears under its final name complete or not at all: it is written under a temporary name in the same
// folder, flushed to the disk, and renamed. Whoever gives up, by return, exception or signal, leaves nothing behind.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/unfinished_files.h"

namespace zoetrope {

class AtomicFile {
 public:
  // Creates the temporary, so that a missing or unwritable folder, or a final name that cannot be replaced (a folder, a
  // device), is an Error now and not after an hour of computing.
  explicit AtomicFile(std::filesystem::path final_path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // removes the temporary unless committed

  const std::filesystem::path& path() const { return final_; }
  // For libraries that open the file themselves; they must have closed it before commit(). Where they may have made it
  // anew, check_not_stopped() afterwards.
  const std::filesystem::path& temporary() const { return temporary_; }

  void check_not_stopped() const;              // Error where remove_unfinished_files() was called
  void write(const void* data, size_t bytes);  // appends; a full disk is an Error
  void close();                                // flushes to the disk; no write() after it. commit() implies it.
  void commit();                               // close and rename; an existing file is replaced
  void commit_as(const std::filesystem::path& final_path);  // under another name in the same folder

 private:
  void discard();

  std::filesystem::path final_;
  std::filesystem::path temporary_;  // empty once committed or moved from
  UnfinishedPath unfinished_;
  int descriptor_ = -1;
};

}  // namespace zoetrope
