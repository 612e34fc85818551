// The one way in which outputs are written: complete under their final name, or not at all. A file is written under a
// temporary name in the same folder, flushed to the disk, and renamed. A link is followed, and what it leads to
// replaced. A stream (pipe, terminal, device, /dev/stdout) gets the whole when it is complete. What the run reads
// (run_files.h) is refused. Whoever gives up, by return, exception or signal, leaves nothing behind.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/unfinished_files.h"

namespace zoetrope {

class AtomicFile {
 public:
  // Creates the temporary, so that a missing or unwritable folder, or a final name that cannot be replaced (a folder,
  // an input of the run, a pipe without a reader), is an Error now and not after an hour of computing.
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
  void send();

  std::filesystem::path final_;      // as the user wrote it
  std::filesystem::path target_;     // behind all links
  std::filesystem::path temporary_;  // empty once committed or moved from
  UnfinishedPath unfinished_;
  int descriptor_ = -1;  // of the temporary
  int stream_ = -1;      // that the temporary is sent to, or none
};

// Error where an AtomicFile of this name would be one, so that it is known before anything long begins. A pipe is not
// opened: its reader would take that for the end.
void check_writable(const std::filesystem::path& path);

}  // namespace zoetrope
